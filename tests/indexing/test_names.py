"""The table of index types, and that the package is light to import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sluice.encoders.foundation.build import resolve
from sluice.indexing import INDEXES, AutoIndex, Index


def test_table() -> None:
    for name, target in INDEXES.items():
        found = resolve(target)
        assert issubclass(found, Index) or found is AutoIndex
        assert found.type_name == name


def test_import_is_light() -> None:
    program = (
        "import sys, indexing; indexing.INDEXES\n"
        "print({'faiss', 'numba', 'torch', 'scipy'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "set()"
    program = (
        "import sys; from sluice.indexing import FlatIndex\n"
        "print({'faiss', 'numba', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "set()"


def test_small_indexes_are_built_searched_and_opened_without_compiled_kernels(
    tmp_path: Path,
) -> None:
    code = f"""if True:
        import sys
        import numpy as np
        from scipy import sparse
        from sluice.indexing import FlatIndex, InvertedIndex, open_index
        dense = np.eye(40, dtype=np.float32)
        for index, vectors in ((FlatIndex(), dense), (InvertedIndex(), sparse.csr_array(dense))):
            folder = {str(tmp_path)!r} + "/" + index.type_name
            index.add(vectors)
            index.search(vectors, 3)
            index.add(vectors)
            index.delete([0])
            index.compact()
            index.save(folder)
            assert (open_index(folder).search(vectors[:2], 1).rows[:, 0] == [39, 0]).all()
        print("numba" in sys.modules)
        """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
