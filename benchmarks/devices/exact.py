"""Show that runs on a GPU are exact: `gridml check` and `gridml run` as a user types them, and the bits of one worker
against those of a plain loop."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.devices.measured import PROGRAMS, ROOT, Ended, Line, Place, alone, folder, gridml, loaded, shown
from master.simulation.result import verify_credits
from master.views.report import report

SEEDS, EPOCHS, WORKERS = 3, 2, 2
IMAGES = 60_000


def lines(place: Place) -> Iterator[Line]:
    program = PROGRAMS / "small_lenet.py" if place.tiny else ROOT / "examples" / "mnist.py"
    images = loaded(program).COUNT if place.tiny else IMAGES
    checked = gridml("check", str(program), "--device", place.device, "--json")
    works = checked.status == 0 and checked.json["device"].startswith(place.device)
    result = f"{checked.json['device']}, {checked.json['batch_s'] * 1e3:.2f} ms a batch" if works else last(checked)
    yield Line("exact", f"gridml check {program.name} --device {place.device}", result, "succeeds", works)

    differing = alone("exact", place.device)
    yield Line(
        "exact",
        "one worker and a plain loop, both on the device, deterministic kernels",
        f"{differing['equal']} of {differing['tensors']} tensors the same bits",
        "all",
        differing["equal"] == differing["tensors"],
    )

    seeds = range(1 if place.tiny else SEEDS)
    cases = [(device, seed) for device in dict.fromkeys((place.device, "cpu")) for seed in seeds]
    with folder() as root, ThreadPoolExecutor(len(cases)) as pool:
        ended = dict(zip(cases, pool.map(lambda case: trained(program, case[0], case[1], root), cases), strict=True))
        for device, seed in cases:
            if (one := ended[device, seed]).status:
                raise RuntimeError(f"seed {seed} on {device} ended with {one.status}: {one.errors[-2000:]}")
        credits = {case: verify_credits(run_of(root, *case)).credited for case in cases}
        accuracy = {
            device: [100 * report(run_of(root, device, seed)).epochs[-1].metrics["accuracy"] for seed in seeds]
            for device, _ in cases
        }
    exact = all(credited == images * EPOCHS for credited in credits.values())
    yield Line(
        "exact",
        f"gridml run {program.name} --device {place.device} --workers {WORKERS} --epochs {EPOCHS}: credited",
        f"{', '.join(f'{credits[place.device, seed]:,}' for seed in seeds)} of {images * EPOCHS:,}",
        "all, once",
        exact,
    )
    mine, cpu = accuracy[place.device], accuracy["cpu"]
    apart = statistics.mean(mine) - statistics.mean(cpu)
    spread = max(max(each) - min(each) for each in (mine, cpu))
    yield Line(
        "exact",
        f"its accuracy on the device and on the CPU, {len(seeds)} seeds",
        f"{shown(mine, '%')}; {shown(cpu, '%')}: {apart:+.2f}",
        "within what seeds differ by",
        abs(apart) <= spread,
    )


def trained(program: Path, device: str, seed: int, root: Path) -> Ended:
    """Run a program with two workers, several such runs at once."""
    arguments = ("--device", device, "--workers", str(WORKERS), "--epochs", str(EPOCHS), "--seed", str(seed))
    return gridml("run", str(program), *arguments, "--run-dir", str(run_of(root, device, seed)), "--json")


def run_of(root: Path, device: str, seed: int) -> Path:
    return root / f"{device}-{seed}"


def last(ended: Ended) -> str:
    """Return the last line that a command printed."""
    return ["", *(ended.errors or ended.output).strip().splitlines()][-1][:300]


def run_alone(device: str) -> dict[str, int]:
    """Train LeNet by one simulated worker and by a plain loop over the same order of images; count equal tensors."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # cuBLAS is deterministic only with it
    import torch

    from chunk_model.goodput import Costs
    from gridml.engine.devices import Device
    from gridml.protocol import bundle
    from master.backends.script import Steady
    from master.simulation.scenario import Scenario
    from master.simulation.world import play_scenario
    from master.store.settings import Settings
    from remote.stepped import Trainer

    torch.use_deterministic_algorithms(True)
    name = "cuda:0" if device == "cuda" else "cpu"
    source, costs, seed = PROGRAMS / "small_lenet.py", Costs(exec_s=0.003), 5
    with tempfile.TemporaryDirectory(prefix="devices-") as kept:
        root = Path(kept) / "run"
        settings = Settings(source, backend="simulated", workers=1, seed=seed, epochs=EPOCHS, steps_each=0)
        trainer = Trainer(source, costs, seed, device=Device(name))
        play_scenario(settings, Scenario(Steady(1), costs), root, trainer=trainer)
        _, mine = bundle.decode((root / "final.safetensors").read_bytes())
    theirs = plain_loop(source, seed, name)
    equal = sum(mine[tensor].tobytes() == values.tobytes() for tensor, values in theirs.items())
    return {"equal": equal, "tensors": len(theirs)}


def plain_loop(source: Path, seed: int, device: str) -> dict[str, Any]:
    """Return the tensors of a loop over gridml's order of vertices, with its learning rates."""
    import torch
    import torch.nn.functional as F

    from gridml.model.order import EpochOrder
    from gridml.model.schedule import linear_decay

    program = loaded(source)
    columns = program.graph().tables["Image"].columns
    pixels, labels = (torch.from_numpy(columns[name]) for name in ("pixels", "label"))
    torch.manual_seed(seed)
    model = program.lenet().to(device)
    optimiser = program.optimiser(model.parameters())
    done, total = 0, len(pixels) * EPOCHS
    for epoch in range(EPOCHS):
        order = EpochOrder(len(pixels), seed, epoch, "all").vertices(0, len(pixels))
        for at in range(0, len(pixels), program.BATCH):
            rows = order[at : at + program.BATCH]
            optimiser.param_groups[0]["lr"] = program.RATE * linear_decay(done / total)
            batch, label = pixels[rows].to(device), labels[rows].to(device)
            optimiser.zero_grad()
            F.cross_entropy(model(batch.float() / 255), label).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            done += len(rows)
    return {f"Network/0/model/{name}": t.cpu().numpy() for name, t in model.state_dict().items()}
