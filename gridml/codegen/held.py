"""Stages that leave the replica as it is: what they would write to replicated types is computed, and dropped.

This is how new vertices are inferred from a trained replica (`gridml.infer`): the program's own stages change the new
vertices and their edges, and read parameters that stay fixed, whatever other new vertices there are.
"""

from __future__ import annotations

import ast
import copy
from dataclasses import replace

from gridml.codegen.stage_code import Fields, field_target, is_max_of


def held(fields: Fields) -> Fields:
    """Return the fields of a stage whose code assigns to unused variables in place of replicated fields. Its working
    memory (`gridml.scratch`, `gridml.derived`) is written as before. The rest is unchanged, so that it draws the same
    random numbers."""
    code = replace(fields.code, tree=_Holder(fields).visit(copy.deepcopy(fields.code.tree)))
    return Fields(fields.stage, code)


class _Holder(ast.NodeTransformer):
    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self._taken = {*fields.code.stored, *fields.code.parameters}

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        raised = is_max_of(node.targets[0], node.value) if self._is_held(node.targets[0]) else None
        node.value = node.value if raised is None else raised  # max(at.worst, x) without reading at.worst
        node.targets = [self._target(each) for each in node.targets]
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        if not self._is_held(node.target):
            return node
        return ast.copy_location(ast.Assign([self._unused(node.target)], node.value), node)

    def _target(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Tuple):
            node.elts = [self._target(each) for each in node.elts]
            return node
        return self._unused(node) if self._is_held(node) else node

    def _is_held(self, node: ast.expr) -> bool:
        access = self._fields.find(field_target(node))
        return access is not None and access.type is not None and access.type.replicated and access.travels

    def _unused(self, node: ast.expr) -> ast.expr:
        """Return a new variable for each place, as each keeps one dtype."""
        name = next(name for number in range(len(self._taken) + 1) if (name := f"unused{number}") not in self._taken)
        self._taken.add(name)
        return ast.copy_location(ast.Name(name, ast.Store()), node)
