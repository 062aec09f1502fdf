"""The torch modules of replicated vertices, accessed as numpy arrays by name.

The arrays share the memory of the module's tensors. Tensors that numpy cannot access, such as those on a device, have a
`Mirror`, and the arrays share its memory.
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
    """The parameters that the optimiser of a module trains, and the state of their gradients."""

    module: tuple[str, int, str]  # type name, vertex index, field
    names: frozenset[str]  # names of all these parameters in the module's state_dict
    reached: frozenset[str]  # names of the parameters to which the last batch gave a gradient
    pulled: bool  # True if any gradient is not 0
    asked: bool  # True if f has called `step` for the optimiser, in this batch or before
    has_rate: bool  # True if the learning rate is not 0


_NO_VALUES: Array = np.empty(0)


def _call(what: str, make: Callable[..., Any], *arguments: Any) -> Any:
    """Call a user's factory, which `what` names in messages. Raises UserCodeError if it fails."""
    try:
        return make(*arguments)
    except Interruption:
        raise
    except BaseException as error:  # SystemExit too, because a failed run that exits with 0 would look successful
        raise UserCodeError(f"{what} failed: {described(error)}. Fix it in the program.") from error


def _placed(module: Any, field: str, declared: Any, device: Device | None) -> Any:
    """Return a module on the device that it trains on. If `device` is None, return the uncompiled module on the CPU."""
    from torch import device as as_device

    if device is None:
        module = getattr(module, COMPILED, module)
    place = as_device(CPU if device is None else device.of(declared, field))
    tensors = (*module.parameters(), *module.buffers())
    return module if all(tensor.device == place for tensor in tensors) else _moved(module, place)


def _moved(module: Any, place: Any) -> Any:
    """Move a module to another device. Keeps tied weights tied, although `Module.to` makes new parameters for some
    devices."""
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
    """Return those `views` of a vertex whose names are also in `before`, its earlier views. So a tensor that f has
    registered since then stays local to this worker. Raises ProgramError if a tensor of `before` is missing or has
    another shape or dtype."""
    for name, view in before.items() if views is not before else ():
        now = views.get(name)
        if now is None or now.shape != view.shape or now.dtype != view.dtype:
            got = "nothing" if now is None else f"{now.dtype} {now.shape}"
            raise ProgramError(
                f"f made {got} of {name}; expected {view.dtype} {view.shape}, as the factory made it, because the "
                f"tensors of all workers are merged. Keep its shape and dtype, or register the buffer with "
                f"persistent=False: then each worker has its own."
            )
    return views if len(views) == len(before) else {name: views[name] for name in before}


@dataclass
class _Made:
    """The modules and optimisers of one vertex."""

    modules: dict[str, Any]  #: by field
    #: By field: the prefix of names in the state dict of the factory's module. Not "" only if that module is compiled
    #: and the module here is not.
    prefixes: dict[str, str]
    optimisers: dict[str, Any]  #: by field, of the modules that have one
    base: list[list[dict[str, Any]]]  #: initial settings of each optimiser's groups, from which rates are computed
    mirrors: Sequence[Mirror] = ()  #: mirrors of tensors that numpy cannot access, one for each device
    #: Cached views: ((tensor, data pointer) of all tensors, their views by name). Stale once any pair has changed.
    viewed: tuple[list[tuple[Any, int]], dict[str, Array]] | None = None
    rates: Sequence[TorchRates] = ()  #: one for each optimiser; empty unless the schedule is a torch scheduler


class Modules:
    """All module vertices of one type in this process. Arguments `at` and `index` are vertex indices.

    The modules train on `device`. If `device` is None, they are only merged and evaluated, on the CPU, and compiled
    modules are replaced by the originals.
    """

    def __init__(self, vertex_type: VertexType, stepping: Stepping | None = None, device: Device | None = None) -> None:
        self.vertex_type = vertex_type
        self.stepping = Stepping() if stepping is None else stepping  # shared by all types of an engine
        self._device = device
        self._made: dict[int, _Made] = {}  # by vertex index; filled only by `make`
        self._remembered = OptimiserMemory()  # optimiser state of released vertices; `make` restores it

    def make(self, index: int) -> None:
        """Make the modules and optimisers of vertex `index`, unless they exist.

        Raises UserCodeError if a factory fails, ProgramError if it does not return a module or an optimiser.
        """
        if index in self._made:
            return
        import torch

        made: dict[str, Any] = {}
        prefixes: dict[str, str] = {}
        optimisers: dict[str, Any] = {}
        for name, declared in self.vertex_type.modules.items():
            field = f"{self.vertex_type.name}.{name}"
            module = _call(f"the factory of {field}", declared.factory)
            if not isinstance(module, torch.nn.Module):
                raise ProgramError(
                    f"the factory of {field} made a {type(module).__name__}; expected a torch.nn.Module."
                )
            check_tensors(field, module)
            whole, module = module, _placed(module, field, declared, self._device)
            prefixes[name] = f"{COMPILED}." if module is getattr(whole, COMPILED, None) else ""
            module.average_with = MethodType(average_with, module)
            made[name] = module
            if declared.optimiser is not None:
                optimiser = _call(f"the optimiser of {field}", declared.optimiser, module.parameters())
                if not isinstance(optimiser, torch.optim.Optimizer):
                    raise ProgramError(f"{field} got {optimiser!r} as its optimiser; expected a torch.optim.Optimizer.")
                optimisers[name] = optimiser
        # Copies: schedules and f change the groups in place.
        base = [
            [{name: value for name, value in group.items() if name != "params"} for group in o.param_groups]
            for o in optimisers.values()
        ]
        self._made[index] = _Made(made, prefixes, optimisers, base)
        self._remembered.restore(index, [*optimisers.values()])

    def keep_only(self, kept: Container[int]) -> None:
        """Release the modules of all vertices except `kept`. The optimiser state of the released vertices is kept,
        because the master does not have it."""
        for index in [index for index in self._made if index not in kept]:
            made = self._made.pop(index)
            for module in made.modules.values():
                # The bound method refers to its module: this cycle would keep the memory until a garbage collection.
                module.__dict__.pop("average_with", None)
            self._remembered.keep(index, [*made.optimisers.values()])

    def vertex(self, index: int) -> Vertex:
        self.make(index)
        return self.vertex_type.cls._view(self, index)

    def views(self, index: int) -> dict[str, Array]:
        """Return every tensor of vertex `index` as a numpy array, by name. An array shares the module's memory or that
        of a mirror, which `pull` and `put` synchronise.

        Names are "Type/index/field/name in state_dict", without the prefixes of compiled modules. Tied weights (one
        tensor under several names) appear once, under the first name, because they must not be rebased twice.

        The views always show the module's current tensors, even after f has assigned a new tensor, as in `self.total =
        self.total + x` for a buffer, or has replaced a tensor's memory. A check, which takes a microsecond per tensor,
        looks for such changes; if there is none, cached views are returned.
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
                views[first] = _NO_VALUES  # a placeholder: the order of the names must not depend on the device
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
        """Return the names in `views` of the tensors of vertex `index`, by field and by name in the state dict of the
        factory's module, with the prefixes of compiled modules. All names of tied weights map to the first name."""
        names: dict[str, dict[str, str]] = {}
        for field, name, _, first in self._tensors(index):
            names.setdefault(field, {})[self._made[index].prefixes[field] + name] = first
        return names

    def _tensors(self, index: int) -> Iterator[tuple[str, str, Any, str]]:
        """Yield (field, name, tensor, name in `views`) of every entry of the state dicts of vertex `index`. Entries
        that share memory have the same name in `views`: that of the first entry."""
        self.make(index)
        seen: dict[Any, str] = {}
        for field, made in self._made[index].modules.items():
            for name, tensor in made.state_dict(keep_vars=True).items():
                whole = f"{self.vertex_type.name}/{index}/{field}/{plain(name)}"
                # All empty tensors have the pointer 0; they must not count as tied.
                memory = tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride()
                yield field, name, tensor, seen.setdefault(memory if tensor.numel() else whole, whole)

    def capture(self, index: int) -> list[Capture]:
        """Start to copy the mirrored tensors of vertex `index` to the host, by their names in `views`."""
        return [mirror.capture() for mirror in self._made[index].mirrors] if index in self._made else []

    def rebase(self, index: int, changes: Mapping[str, tuple[Array, Array]]) -> set[str]:
        """Set tensors of vertex `index` to newest + (tensor − pushed) on their devices. `changes` maps a name to
        (pushed, newest). Return the names of the tensors that were set; the host must rebase all other tensors."""
        mirrors = self._made[index].mirrors if index in self._made else ()
        return {name for mirror in mirrors for name in mirror.rebase(changes)}

    def pull(self, index: int | None = None, names: Collection[str] | None = None) -> None:
        """Copy mirrored tensors to the `views` of vertex `index` (default: of every vertex). `names` limits the tensors
        to copy."""
        for each, made in self._made.items():
            if made.viewed is not None and index in (None, each):
                self.views(each)  # refreshes the mirrors: f may have assigned new tensors
                for mirror in made.mirrors:
                    mirror.pull(names)

    def put(self, index: int, names: Collection[str]) -> None:
        """Copy the views of these names back to the mirrored tensors of vertex `index`."""
        for mirror in self._made[index].mirrors if index in self._made else ():
            mirror.put(names)

    def trained(self, index: int) -> set[str]:
        """Return the names in `views` of the trained tensors of vertex `index`: parameters that require a gradient. The
        vertex's other tensors are frozen parameters, and buffers, which f can change."""
        self.make(index)
        return {
            f"{self.vertex_type.name}/{index}/{field}/{plain(name)}"
            for field, made in self._made[index].modules.items()
            for name, parameter in made.named_parameters()
            if parameter.requires_grad
        }

    def trainable(self) -> Iterator[Trainable]:
        """Yield a `Trainable` for each field with an optimiser, of all vertices made so far."""
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
        """Prepare to recompute BatchNorm's running statistics. From now on optimisers take no steps, and every
        BatchNorm layer of the vertices made so far averages over all batches that it gets in training mode.

        Return the running means, variances and counts of these layers, by vertex and by their names in `views`. They
        share the modules' memory. A layer that gets no batch keeps its statistics, with a count of 0.
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
                    layer.momentum = None  # torch's setting for a cumulative mean
                    assert layer.num_batches_tracked is not None
                    layer.num_batches_tracked.zero_()
                    within = f"{self.vertex_type.name}/{index}/{field}/{plain(path)}{'.' if plain(path) else ''}"
                    names += [within + name for name in STATISTICS]
            views = self.views(index)
            gathered[self.vertex_type.name, index] = {name: views[name] for name in names if name in views}
        return gathered

    def moments(self, index: int) -> dict[str, Array]:
        """Return those optimiser moments of vertex `index` that other workers can start from, by "entry/NAME"."""
        names = {id(tensor): first for _, _, tensor, first in self._tensors(index)}
        of_each = [gathered(optimiser, names) for optimiser in self._made[index].optimisers.values()]
        return {name: values for moments in of_each for name, values in moments.items()}

    def inherit(self, index: int, moments: Mapping[str, Array]) -> list[str]:
        """Initialise the optimisers of vertex `index` that have not stepped yet with `moments` of other workers. Return
        a reason for each optimiser that cannot take them."""
        names = {id(tensor): first for _, _, tensor, first in self._tensors(index)}
        problems: list[str] = []
        for field, optimiser in self._made[index].optimisers.items():
            made, declared = self._made[index].modules[field], self.vertex_type.modules[field].optimiser
            try:
                of_each = entries_of(declared, weights_of(made)) if declared is not None else {}
            except Exception as error:  # the trial step failed, so this optimiser builds its own moments
                problems.append(f"a trial step of {type(optimiser).__name__} failed: {described(error)}")
                continue
            first_names = {plain(name): names.get(id(p), "") for name, p in made.named_parameters()}
            entries = {first_names[name]: each for name, each in of_each.items()}
            problem = inherit(optimiser, names, moments, entries)
            problems += [problem] if problem is not None else []
        return problems

    def all_optimisers(self) -> list[Any]:
        """Return the optimisers of every vertex made so far."""
        return [optimiser for made in self._made.values() for optimiser in made.optimisers.values()]

    def set_rate(self, factor: float, scale: float = 1.0) -> None:
        """Set every optimiser's learning rate to the user's times the schedule's `factor` and the `scale` of the batch
        (`gridml.engine.pace.rate_scale`)."""
        for made in self._made.values():
            for optimiser, base in zip(made.optimisers.values(), made.base, strict=True):
                for group, settings in zip(optimiser.param_groups, base, strict=True):
                    group["lr"] = settings["lr"] * factor * scale

    def follow(self, schedule: TorchSchedule, at: Progress, scale: float = 1.0) -> None:
        """Give every optimiser the settings of torch's scheduler at this progress, with the rate times the `scale` of
        the batch. Raises ProgramError if the scheduler cannot be made."""
        for made in self._made.values():
            if not made.rates or any(each.steps != at.steps for each in made.rates):
                pairs = zip(made.optimisers.values(), made.base, strict=True)
                made.rates = [TorchRates(schedule, o.defaults, base, at.steps) for o, base in pairs]
            for optimiser, each in zip(made.optimisers.values(), made.rates, strict=True):
                for group, settings in zip(optimiser.param_groups, each.at(schedule.place(at)), strict=True):
                    group.update(settings)
                    group["lr"] = settings["lr"] * scale

    def forget_optimisers(self) -> None:
        """Reset every optimiser's state, after the master has rejected work."""
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
        """Load the state of another module, or a state dict, into the vertex's module."""
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
    """Replaces `Optimizer.step` while running statistics are recomputed."""


def average_with(self: Any, other: Any, weight: float) -> None:
    """Move every floating-point tensor of a module towards that of `other`, by the fraction `weight`. Integer tensors
    take the maximum."""
    import torch

    with torch.no_grad():
        theirs = other.state_dict()
        for name, mine in self.state_dict().items():
            if mine.is_floating_point():
                mine.lerp_(theirs[name], weight)
            else:
                mine.copy_(torch.maximum(mine, theirs[name]))


class ModuleRows:
    """The module vertices of one chunk, by their position in the chunk. A vertex that f writes or steps is added to
    `used`."""

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
