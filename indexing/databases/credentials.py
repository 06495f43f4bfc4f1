"""Keeps secrets out of settings: an address with a password in it is refused."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

from sluice.encoders.foundation.errors import ConfigError

SECRETS = re.compile(r"(?i)(pass(word)?|pwd|sslpassword|(api[-_]?)?key|token|secret)$")
PAIR = re.compile(r"(\w[\w-]*)\s*=\s*('(?:[^'\\]|\\.)*'|[^\s'][^\s]*)")


def refuse_secrets(address: str, where: str, remedy: str) -> None:
    """Raise ``ConfigError`` for a URL, or ``key=value`` text, with a password or key in it.

    A setting is saved beside what is built with it, and printed in errors. The message names
    ``where`` and the ``remedy``, never the address.
    """
    try:
        parts = urlsplit(address)
        secret = bool(parts.password)
        pairs = parse_qsl(parts.query)
    except ValueError:  # such as a bracket of an IPv6 address left open
        secret, pairs = "@" in address, []
    if "://" not in address:
        pairs = PAIR.findall(address)
    elif address.partition("://")[2].partition("/")[0].count("@") > 1:
        secret = True  # a password with an @ of its own
    if secret or any(SECRETS.match(name) and value.strip("'") for name, value in pairs):
        raise ConfigError(f"{where}: holds a password or a key, which would be saved; {remedy}")
