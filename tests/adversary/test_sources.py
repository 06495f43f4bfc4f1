"""The package's own sources: nothing in them runs what a file says, and nothing unpickles."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
PACKAGES = ("encoders", "indexing", "training", "retrieval", "sluice")
SOURCES = sorted(
    path
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if package != "sluice" or path.parent.name == "sluice"  # its folders are links to the others
)
REFUSED_IMPORTS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve",
                   "marshal", "imp", "code"}  # fmt: skip
REFUSED_CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.unsafe_load",
    "yaml.full_load", "yaml.load_all", "pd.read_pickle", "pandas.read_pickle", "torch.hub.load",
    "torch.jit.load", "numpy.fromregex", "runpy.run_path",
}  # fmt: skip
REFUSED_VALUES = {
    "shell": True, "trust_remote_code": True, "allow_pickle": True, "weights_only": False,
}  # fmt: skip
NEEDED = {  # a call's name: the keyword it needs, with this value
    "np.load": ("allow_pickle", False),
    "torch.load": ("weights_only", True),
    "SentenceTransformer": ("trust_remote_code", False),
}


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _value(node: ast.Call, key: str) -> object:
    found = [each.value for each in node.keywords if each.arg == key]
    return found[0].value if found and isinstance(found[0], ast.Constant) else None


def faults_in(tree: ast.AST) -> Iterator[str]:
    """Yield what a source must not do."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = {getattr(node, "module", None) or "", *(each.name for each in node.names)}
            yield from (f"imports {each}" for each in modules & REFUSED_IMPORTS)
        elif isinstance(node, ast.Call):
            yield from (f"{_name(node.func)}: {fault}" for fault in _faults_of_call(node))


def _faults_of_call(node: ast.Call) -> Iterator[str]:
    name = _name(node.func)
    if name in REFUSED_CALLS:
        yield "is refused"
    if name in NEEDED and _value(node, NEEDED[name][0]) is not NEEDED[name][1]:
        yield f"without {NEEDED[name]}"
    for key, value in REFUSED_VALUES.items():
        if _value(node, key) is value:
            yield f"{key}={value}"
    if name.endswith((".extractall", ".extract")) and _value(node, "filter") is None:
        yield "without filter"
    values = [_name(each.value) for each in node.keywords]
    if name == "yaml.load" and "loader" not in values:  # of ``load_yaml``, tested below
        yield "without the safe loader"
    automatic = name.startswith(("Auto", "auto_class"))
    if automatic and name.endswith(".from_pretrained") and "LOCAL" not in values:
        yield "without **LOCAL"


def test_no_source_runs_what_a_file_says() -> None:
    faults = [
        f"{path.relative_to(ROOT)}: {fault}"
        for path in SOURCES
        for fault in faults_in(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not faults, "\n".join(faults)
    assert len(SOURCES) > 300


@pytest.mark.parametrize(
    "text",
    [
        "import pickle", "from joblib import load", "np.load(path)", "eval('1')",
        "np.load(path, allow_pickle=True)", "torch.load(path, weights_only=False)",
        "subprocess.run('ls', shell=True)", "yaml.load(text, Loader=yaml.Loader)",
        "archive.extractall(folder)", "AutoModel.from_pretrained(folder)",
        "AutoTokenizer.from_pretrained(folder, trust_remote_code=True)", "os.system('ls')",
        "SentenceTransformer(folder)",
    ],
)  # fmt: skip
def test_what_is_refused_is_found(text: str) -> None:
    assert list(faults_in(ast.parse(text)))


def test_the_safe_yaml_loader_is_one() -> None:
    import yaml

    from sluice.encoders.foundation.bounded_input import SAFE, PlainLoader
    from sluice.retrieval.config.yaml_file import Loader

    assert SAFE in (yaml.SafeLoader, yaml.CSafeLoader)
    assert issubclass(PlainLoader, SAFE)
    assert issubclass(Loader, PlainLoader)
