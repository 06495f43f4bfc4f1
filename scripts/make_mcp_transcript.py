"""What an agent asks and gets over MCP: indexes a few notes, serves them, and asks twice.

    python scripts/make_mcp_transcript.py [--write]

The official SDK's client asks once over the standard streams and once over streamable HTTP, each of
a ``sluice serve`` of its own. Both transcripts have to be the same, and it is printed;
``--write`` puts it into docs/agents.md. Needs the extra ``serve``.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "agents.md"
BEGIN, END = "<!-- transcript: scripts/make_mcp_transcript.py -->\n", "<!-- end of transcript -->\n"
SLUICE = [sys.executable, "-c", "from sluice.retrieval.cli import main; main()", "-q"]
NOTES = {
    "garage.md": "# The garage\n\nThe blue key opens the garage. It hangs beside the door.\n",
    "house/cellar.md": "# The cellar\n\nThe cellar has no key; its door sticks when it rains.\n",
    "house/roof.md": "# The roof\n\nThe gutter was mended in May.\n",
}
CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("search", {"query": "where is the key of the garage?", "limit": 2}),
    ("fetch", {"id": "garage.md"}),
    (
        "search",
        {
            "query": ["which door sticks?", "when was the roof mended?"],
            "context": "The garage is open now. The gutter and the cellar are left.",
            "seen": ["garage.md"],
        },
    ),
    ("search", {"query": []}),
    ("fetch", {"id": "attic.md"}),
)


def write_notes(folder: Path) -> Path:
    """Write the notes into a folder; returns it."""
    for name, text in NOTES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


async def transcript(client: Any) -> str:
    """Return what a connected client asks, and what it is answered."""
    tools = (await client.list_tools()).tools
    known = [f"{tool.name}({', '.join(tool.input_schema['properties'])})" for tool in tools]
    lines = ["> tools", f"< {', '.join(known)}"]
    for name, arguments in CALLS:
        lines.append(f"> {name} {json.dumps(arguments)}")
        answer = await client.call_tool(name, arguments)
        if answer.is_error:
            lines.append(f"< error: {answer.content[0].text}")
        else:
            lines.append(f"< {json.dumps(answer.structured_content, indent=1)}")
    return "\n".join(lines) + "\n"


async def asked(server: Any) -> str:
    """Connect to a server, an address or a command, and return the transcript."""
    from mcp.client.client import Client

    async with Client(server) as client:
        return await transcript(client)


def over_both(folder: Path) -> str:
    """Return the transcript over standard streams, which HTTP has to give as well."""
    from mcp.client.stdio import StdioServerParameters

    words = [*SLUICE[1:], "serve", str(folder), "--mcp", "stdio"]
    streams = asyncio.run(asked(StdioServerParameters(command=SLUICE[0], args=words)))
    words = [*SLUICE, "serve", str(folder), "--mcp", "http", "--port", "0"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            address = re.search(r"http://\S+/mcp", server.stderr.readline())
            assert address is not None
            http = asyncio.run(asked(address.group()))
        finally:
            server.terminate()
    assert streams == http, f"{streams}\n\n{http}"
    return streams


def block(text: str) -> str:
    """Return a transcript as it stands in the page."""
    return f"{BEGIN}```text\n{text}```\n{END}"


def main() -> None:
    """Print the transcript, and write it into the page if asked."""
    with tempfile.TemporaryDirectory() as here:
        folder = write_notes(Path(here) / "notes")
        output = Path(here) / "my"
        words = [*SLUICE, "index", str(folder), "--bm25", "--output", str(output)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        text = over_both(output)
    print(text, end="")
    if "--write" in sys.argv[1:]:
        page = PAGE.read_text(encoding="utf-8")
        start, end = page.index(BEGIN), page.index(END) + len(END)
        PAGE.write_text(page[:start] + block(text) + page[end:], encoding="utf-8")


if __name__ == "__main__":
    main()
