"""What is odd about the data that a graph holds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gridml.model.graph import Graph

_AT_ONCE = 1 << 22  # numbers that are looked at together: a column may be a file larger than memory


def not_finite(graph: Graph) -> Iterator[str]:
    """Yield for each field of numbers that are not all finite how many vertices have such, and the first. Reads every
    field of floating-point numbers once."""
    for table in graph.tables.values():
        for name, column in table.columns.items():
            if column.dtype.kind != "f" or not column.size:
                continue
            rows, count, first = max(1, _AT_ONCE * len(column) // column.size), 0, -1
            for start in range(0, len(column), rows):
                part = column[start : start + rows]
                wrong = np.flatnonzero(~np.isfinite(part.reshape(len(part), -1)).all(1))
                first = start + int(wrong[0]) if first < 0 and len(wrong) else first
                count += len(wrong)
            if count:
                yield (
                    f"{table.type.name}.{name} holds NaN or infinity in {count:,} of {len(column):,} vertices, first "
                    f"in {table.type.name} {first:,}; what f makes of that is refused where it is not finite"
                )
