"""The documentation's page on runs from Python, as a notebook in a real kernel."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

PAGE = Path(__file__).parents[3] / "docs" / "python.md"


@pytest.mark.real
def test_the_page_runs_as_a_notebook(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    cells = [nbformat.v4.new_code_cell(block) for block in blocks]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=200, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    shown = [output for output in notebook.cells[1].outputs if output.output_type == "display_data"]
    assert len(shown) == 1  # it is updated in place
    assert "every vertex of 128 is credited once" in shown[0].data["text/html"]
    said = [
        "".join(output.text for output in cell.outputs if output.output_type == "stream") for cell in notebook.cells
    ]
    assert said[2].startswith("finished 128 0 0\n") and said[4] == "[1, 2, 3]\n"
    assert said[5].startswith("finished 2 of 2 tensors are those of ")
    assert "which is no option of it; did you mean workers?" in said[6]
    kept = (tmp_path / "runs" / "first" / "program" / "notebook.py").read_text()
    assert "class Network" in kept and "gridml.run" not in kept
