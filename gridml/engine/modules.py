"""The torch modules of replicated vertices: made once per process, seen as named numpy arrays on the same memory, or on
that of a mirror where they train on a device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gridml.engine.devices import Device
from gridml.engine.mirror import Capture, Mirror, check_tensors, needs_mirror
from gridml.engine.optimisers import OptimiserMemory, TorchRates, entries_of, gathered, inherit
from gridml.engine.pace import rate_scale
from gridml.errors import Interruption, ProgramError, UserCodeError
from gridml.model.device_memory import CPU
from gridml.model.layers import COMPILED, STATISTICS, batch_norms, plain, weights_of
from gridml.model.schedule import Progress, TorchSchedule
from gridml.model.stepping import Stepping
from gridml.model.vertex import Vertex, VertexId, VertexType
from gridml.protocol.foreign import described
from gridml.protocol.push import VertexKey

Array = NDArray[Any]


class Trainable(NamedTuple):
    """The parameters that the optimiser of a module may move, and what f has done to that."""

    module: tuple[str, int, str]  # type, vertex, field
    names: frozenset[str]  # of the parameters, as in the module's state_dict
    reached: frozenset[str]  # those that the loss of the last batch leads to
    pulled: bool  # whether any has a gradient that is not 0
    asked: bool  # whether f has asked for a step, in this batch or before
    has_rate: bool  # whether the learning rate is not 0


_NO_VALUES: Array = np.empty(0)


def _call(what: str, make: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a user's factory makes. Raises UserCodeError when it fails."""
    try:
        return make(*arguments)
    except Interruption:
        raise
    except BaseException as error:  # a run that ends with the status of SystemExit would pass for a success
        raise UserCodeError(f"{what} failed: {described(error)}. Mend it in the program.") from error


def _placed(module: Any, field: str, declared: Any, device: Device | None) -> Any:
    """Return a module where it is to train; where nothing is trained, as the factory made it before it was compiled."""
    from torch import device as as_device

    if device is None:
        module = getattr(module, COMPILED, module)
    place = as_device(CPU if device is None else device.of(declared, field))
    tensors = (*module.parameters(), *module.buffers())
    return module if all(tensor.device == place for tensor in tensors) else _moved(module, place)


def _moved(module: Any, place: Any) -> Any:
    """Return a module on another device, where what was one tensor under several names still is: torch makes parameters
    anew where a device's tensors are of another kind."""
    places = [(part, name, p) for part in module.modules() for name, p in part._parameters.items() if p is not None]
    moved = module.to(place)
    first: dict[int, Any] = {}
    for part, name, before in places:
        part._parameters[name] = first.setdefault(id(before), part._parameters[name])
    return moved


def _same(tensors: list[tuple[Any, int]], others: list[tuple[Any, int]]) -> bool:
    return len(tensors) == len(others) and all(
        one is other and where == place for (one, where), (other, place) in zip(tensors, others, strict=True)
    )


def checked_views(views: dict[str, Array], before: Mapping[str, Array]) -> dict[str, Array]:
    """Return of a vertex's `views` those that it had `before`. A tensor that came later stays with its worker: nobody
    else has it. Raises ProgramError for one that is gone, or has another shape or dtype."""
    for name, view in before.items() if views is not before else ():
        now = views.get(name)
        if now is None or now.shape != view.shape or now.dtype != view.dtype:
            got = "nothing" if now is None else f"{now.dtype} {now.shape}"
            raise ProgramError(
                f"f made {got} of {name}; expected {view.dtype} {view.shape}, as the factory made it, since "
                f"all workers' are merged. Keep its shape and dtype, or register the buffer with persistent=False: "
                f"then each worker has its own."
            )
    return views if len(views) == len(before) else {name: views[name] for name in before}


@dataclass
class _Made:
    """A vertex that was made: its modules and their optimisers, by field."""

    modules: dict[str, Any]
    optimisers: dict[str, Any]
    base: list[list[dict[str, Any]]]  # the settings of the optimisers' groups, as they were made
    mirrors: Sequence[Mirror] = ()  # of the tensors that the host has no memory of
    viewed: tuple[list[tuple[Any, int]], dict[str, Array]] | None = None  # (tensors and where, their views)
    rates: Sequence[TorchRates] = ()


class Modules:
    """All module vertices of one type that this process holds; positions are vertex indices. They train on `device`;
    None stands for where nothing is trained but merged and evaluated: there a compiled module is what it was made of.
    """

    def __init__(self, vertex_type: VertexType, stepping: Stepping | None = None, device: Device | None = None) -> None:
        self.vertex_type = vertex_type
        self.stepping = Stepping() if stepping is None else stepping  # one for all types that f steps
        self._device = device
        self._made: dict[int, _Made] = {}
        self._remembered = OptimiserMemory()

    def make(self, index: int) -> None:
        """Make vertex `index` unless it is there.

        Raises ProgramError when its factory makes no module, UserCodeError when it fails.
        """
        if index in self._made:
            return
        import torch

        made: dict[str, Any] = {}
        optimisers: dict[str, Any] = {}
        for name, declared in self.vertex_type.modules.items():
            field = f"{self.vertex_type.name}.{name}"
            module = _call(f"the factory of {field}", declared.factory)
            if not isinstance(module, torch.nn.Module):
                raise ProgramError(
                    f"the factory of {field} made a {type(module).__name__}; expected a torch.nn.Module."
                )
            check_tensors(field, module)
            module = _placed(module, field, declared, self._device)
            module.average_with = MethodType(average_with, module)
            made[name] = module
            if declared.optimiser is not None:
                optimiser = _call(f"the optimiser of {field}", declared.optimiser, module.parameters())
                if not isinstance(optimiser, torch.optim.Optimizer):
                    raise ProgramError(f"{field} got {optimiser!r} as its optimiser; expected a torch.optim.Optimizer.")
                optimisers[name] = optimiser
        base = [
            [{name: value for name, value in group.items() if name != "params"} for group in o.param_groups]
            for o in optimisers.values()
        ]
        self._made[index] = _Made(made, optimisers, base)
        self._remembered.restore(index, [*optimisers.values()])

    def keep_only(self, kept: Container[int]) -> None:
        """Free the modules of all vertices but these; what their optimisers remember is kept to go on with."""
        for index in [index for index in self._made if index not in kept]:
            made = self._made.pop(index)
            for module in made.modules.values():
                module.__dict__.pop("average_with", None)  # bound to the module: it would wait for Python's collector
            self._remembered.keep(index, [*made.optimisers.values()])

    def vertex(self, index: int) -> Vertex:
        self.make(index)
        return self.vertex_type.cls._view(self, index)

    def views(self, index: int) -> dict[str, Array]:
        """Return every tensor of vertex `index` as a numpy array, by its name: on the module's own memory, or of a
        mirror of it, which `pull` and `put` keep alike.

        Names are "Type/index/field/name in state_dict", as if nothing was compiled. Tied weights, one tensor under
        several names, go by the first of them: rebased twice, they would be wrong.

        They are of the tensors that the module has now: f may give it a new one, as a buffer's `self.total = self.total
        + x` does, or a tensor other memory. As long as it has not, the same views are returned, for a microsecond a
        tensor.
        """
        self.make(index)
        made = self._made[index]
        present = [
            (tensor, tensor.data_ptr())
            for module in made.modules.values()
            for part in module.modules()
            for tensors in (part._parameters, part._buffers)
            for name, tensor in tensors.items()
            if tensor is not None and name not in part._non_persistent_buffers_set
        ]
        if made.viewed is None or not _same(present, made.viewed[0]):
            made.viewed = present, self._made_views(index)
        return made.viewed[1]

    def _made_views(self, index: int) -> dict[str, Array]:
        views: dict[str, Array] = {}
        mirrored: dict[str, dict[str, Any]] = {}  # tensors by name, by device
        for _, _, tensor, first in self._tensors(index):
            if first in views:
                continue
            if needs_mirror(tensor):
                mirrored.setdefault(str(tensor.device), {})[first] = tensor
                views[first] = _NO_VALUES  # it keeps its place among the others
                continue
            views[first] = tensor.detach().numpy()
        made = self._made[index]
        before = {mirror.device: mirror for mirror in made.mirrors}
        made.mirrors = [
            before[device] if device in before and before[device].follow(tensors) else Mirror(tensors, device)
            for device, tensors in mirrored.items()
        ]
        for mirror in made.mirrors:
            views.update(mirror.arrays)
        return views

    def names(self, index: int) -> dict[str, dict[str, str]]:
        """Return what each tensor of vertex `index` is called in `views`, by field and by its name in state_dict, as if
        nothing was compiled: of tied weights all as the first of them."""
        names: dict[str, dict[str, str]] = {}
        for field, name, _, first in self._tensors(index):
            names.setdefault(field, {})[plain(name)] = first
        return names

    def _tensors(self, index: int) -> Iterator[tuple[str, str, Any, str]]:
        """Yield every entry of the state dicts of vertex `index`: its field, its name there, the tensor, and what the
        first with the same memory is called in `views`."""
        self.make(index)
        seen: dict[Any, str] = {}
        for field, made in self._made[index].modules.items():
            for name, tensor in made.state_dict(keep_vars=True).items():
                whole = f"{self.vertex_type.name}/{index}/{field}/{plain(name)}"
                memory = tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride()
                yield field, name, tensor, seen.setdefault(memory if tensor.numel() else whole, whole)

    def capture(self, index: int) -> list[Capture]:
        """Begin to bring home what vertex `index` holds of which the host has not the memory, by names of `views`."""
        return [mirror.capture() for mirror in self._made[index].mirrors] if index in self._made else []

    def pull(self, index: int | None = None) -> None:
        """Bring home what vertex `index`, or every one, holds by now: afterwards `views` are up to date."""
        for each, made in self._made.items():
            if made.viewed is not None and index in (None, each):
                self.views(each)  # of the tensors that the module has by now
                for mirror in made.mirrors:
                    mirror.pull()

    def put(self, index: int, names: Collection[str]) -> None:
        """Have vertex `index` hold what was written into its views of these names."""
        for mirror in self._made[index].mirrors if index in self._made else ():
            mirror.put(names)

    def trained(self, index: int) -> set[str]:
        """Return which tensors of vertex `index` an optimiser may move, by their names in `views`: parameters that ask
        for a gradient. Others are buffers, which f may change, and what is frozen."""
        self.make(index)
        return {
            f"{self.vertex_type.name}/{index}/{field}/{plain(name)}"
            for field, made in self._made[index].modules.items()
            for name, parameter in made.named_parameters()
            if parameter.requires_grad
        }

    def trainable(self) -> Iterator[Trainable]:
        """What the optimisers of all vertices made so far may move, and what has become of it, field by field."""
        for index, made in self._made.items():
            for field, optimiser in made.optimisers.items():
                groups = optimiser.param_groups
                own = {id(parameter) for group in groups for parameter in group["params"]}
                named = made.modules[field].named_parameters()
                parameters = {plain(name): p for name, p in named if p.requires_grad and id(p) in own}
                yield Trainable(
                    (self.vertex_type.name, index, field),
                    frozenset(parameters),
                    frozenset(name for name, p in parameters.items() if p.grad is not None),
                    any(p.grad is not None and bool((p.grad != 0).any()) for p in parameters.values()),
                    id(optimiser) in self.stepping.asked,
                    any(float(group.get("lr", 1)) != 0 for group in groups),
                )

    def evaluation_mode(self) -> None:
        """Put every module into evaluation mode: no dropout, BatchNorm by its running statistics."""
        for made in self._made.values():
            for module in made.modules.values():
                module.eval()

    def gather_statistics(self) -> dict[VertexKey, dict[str, Array]]:
        """Have no optimiser of f take a step from here on, and every BatchNorm layer of the vertices made so far gather
        its running statistics anew, as means over all batches that it sees in training mode.

        Return the running means, variances and counts of these layers on the modules' own memory, by vertex and by
        their names in `views`. A layer that sees no batch keeps its statistics, with a count of 0.
        """
        self.stepping.idle = True
        gathered: dict[VertexKey, dict[str, Array]] = {}
        for index, made in self._made.items():
            for optimiser in made.optimisers.values():
                optimiser.step = _no_step
            names: list[str] = []
            for field, module in made.modules.items():
                for path, layer in batch_norms(module):
                    if layer.running_mean is None:
                        continue
                    layer.momentum = None
                    assert layer.num_batches_tracked is not None
                    layer.num_batches_tracked.zero_()
                    within = f"{self.vertex_type.name}/{index}/{field}/{plain(path)}{'.' if plain(path) else ''}"
                    names += [within + name for name in STATISTICS]
            views = self.views(index)
            gathered[self.vertex_type.name, index] = {name: views[name] for name in names if name in views}
        return gathered

    def moments(self, index: int) -> dict[str, Array]:
        """Return what others can go on with of what the optimisers of vertex `index` remember, by "entry/NAME"."""
        names = {id(tensor): first for _, _, tensor, first in self._tensors(index)}
        of_each = [gathered(optimiser, names) for optimiser in self._made[index].optimisers.values()]
        return {name: values for moments in of_each for name, values in moments.items()}

    def inherit(self, index: int, moments: Mapping[str, Array]) -> list[str]:
        """Have the optimisers of vertex `index` that have not stepped begin with what `moments` brought of others.
        Return why some of it is not taken."""
        names = {id(tensor): first for _, _, tensor, first in self._tensors(index)}
        problems: list[str] = []
        for field, optimiser in self._made[index].optimisers.items():
            made, declared = self._made[index].modules[field], self.vertex_type.modules[field].optimiser
            try:
                of_each = entries_of(declared, weights_of(made)) if declared is not None else {}
            except Exception as error:  # it needs gradients of another kind, perhaps: it gathers its own
                problems.append(f"{type(optimiser).__name__} cannot be tried: {described(error)}")
                continue
            first_names = {plain(name): names.get(id(p), "") for name, p in made.named_parameters()}
            entries = {first_names[name]: each for name, each in of_each.items()}
            problem = inherit(optimiser, names, moments, entries)
            problems += [problem] if problem is not None else []
        return problems

    def set_rate(self, factor: float, share: float = 1.0) -> None:
        """Set every optimiser's learning rate to the user's times `factor`, for batches of `share` of the program's."""
        for made in self._made.values():
            for optimiser, base in zip(made.optimisers.values(), made.base, strict=True):
                for group, settings in zip(optimiser.param_groups, base, strict=True):
                    group["lr"] = settings["lr"] * factor * rate_scale(share)

    def follow(self, schedule: TorchSchedule, at: Progress, share: float = 1.0) -> None:
        """Give every optimiser the settings that torch's scheduler gives it there, its rate scaled for batches of
        `share` of the program's. Raises ProgramError for a scheduler that cannot be made."""
        for made in self._made.values():
            if not made.rates or any(each.steps != at.steps for each in made.rates):
                pairs = zip(made.optimisers.values(), made.base, strict=True)
                made.rates = [TorchRates(schedule, o.defaults, base, at.steps) for o, base in pairs]
            for optimiser, each in zip(made.optimisers.values(), made.rates, strict=True):
                for group, settings in zip(optimiser.param_groups, each.at(schedule.place(at)), strict=True):
                    group.update(settings)
                    group["lr"] = settings["lr"] * rate_scale(share)

    def forget_optimisers(self) -> None:
        """Start every optimiser's state afresh, after work that was refused."""
        self._remembered.clear()
        for made in self._made.values():
            for name, declared in self.vertex_type.modules.items():
                if declared.optimiser is not None:
                    made.optimisers[name] = declared.optimiser(made.modules[name].parameters())

    def identify(self, at: int) -> VertexId:
        return VertexId(self.vertex_type.name, at)

    def read(self, name: str, at: int) -> Any:
        return self._made[at].modules[name]

    def write(self, name: str, at: int, value: Any) -> None:
        """Give the vertex the state of another module, or of a state dict."""
        mine = self._made[at].modules[name]
        if value is not mine:
            state = value.state_dict() if hasattr(value, "state_dict") else value
            own = {plain(key): key for key in mine.state_dict()}
            mine.load_state_dict({own.get(plain(key), key): tensor for key, tensor in state.items()})

    def neighbours(self, name: str, at: int) -> list[Vertex]:
        return []

    def weights(self, name: str, at: int) -> list[Any]:
        return []

    def optimisers(self, at: int) -> dict[str, Any]:
        return self._made[at].optimisers


def _no_step(*arguments: Any, **options: Any) -> None:
    """What an optimiser does where f is run only for the running statistics of its layers."""


def average_with(self: Any, other: Any, weight: float) -> None:
    """Move every floating-point tensor of a module by `weight` towards the other's; integer ones take the maximum."""
    import torch

    with torch.no_grad():
        theirs = other.state_dict()
        for name, mine in self.state_dict().items():
            if mine.is_floating_point():
                mine.lerp_(theirs[name], weight)
            else:
                mine.copy_(torch.maximum(mine, theirs[name]))


class ModuleRows:
    """The module vertices one chunk leads to, by their position in the chunk.

    The ids of those that f writes or steps go into `used`.
    """

    def __init__(self, modules: Modules, ids: NDArray[np.int64], used: set[VertexId]) -> None:
        self.vertex_type = modules.vertex_type
        self.ids = ids
        self._modules = modules
        self._used = used
        self.stepping = modules.stepping
        for index in ids:
            modules.make(int(index))

    def identify(self, at: int) -> VertexId:
        return self._modules.identify(int(self.ids[at]))

    def read(self, name: str, at: int) -> Any:
        return self._modules.read(name, int(self.ids[at]))

    def write(self, name: str, at: int, value: Any) -> None:
        self._used.add(self.identify(at))
        self._modules.write(name, int(self.ids[at]), value)

    def neighbours(self, name: str, at: int) -> list[Vertex]:
        return []

    def weights(self, name: str, at: int) -> list[Any]:
        return []

    def optimisers(self, at: int) -> dict[str, Any]:
        self._used.add(self.identify(at))
        return self._modules.optimisers(int(self.ids[at]))
