"""Work that Ray's own libraries start, by name: prints the nodes that it ran on. Nothing here uses stead."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import ray


def here() -> str:
    return str(ray.get_runtime_context().get_node_id())


def data() -> Iterable[str]:
    def stamp(batch: dict[str, Any]) -> dict[str, Any]:
        batch["node"] = [here()] * len(batch["id"])
        return batch

    return {row["node"] for row in ray.data.range(100, override_num_blocks=8).map_batches(stamp).take_all()}


def serve() -> Iterable[str]:
    from ray import serve

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    class Answer:
        def __call__(self, _: Any) -> str:
            return f"{here()} {os.getpid()}"

    serve.start(http_options={"host": "127.0.0.1", "port": port})
    deployment: Any = serve.deployment(num_replicas=2, ray_actor_options={"num_cpus": 0.5})(Answer)
    serve.run(deployment.bind())
    answers = set()
    for _ in range(100):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as answer:
            answers.add(answer.read().decode())
        if len(answers) == 2:
            break
    assert len(answers) == 2, f"two replicas, but the answers came from {answers}"
    serve.shutdown()
    return {answer.split()[0] for answer in answers}


def tune() -> Iterable[str]:
    from ray import tune

    @ray.remote(num_cpus=0)  # type: ignore[untyped-decorator]
    def child() -> str:
        return here()

    def trial(_: dict[str, Any]) -> None:
        tune.report({"node": here(), "child": ray.get(child.remote())})

    with tempfile.TemporaryDirectory() as folder:
        found = tune.Tuner(
            trial,
            tune_config=tune.TuneConfig(num_samples=2),
            run_config=tune.RunConfig(storage_path=folder, verbose=0),
        ).fit()
    assert len(found) == 2
    return {result.metrics[key] for result in found for key in ("node", "child")}


def train() -> Iterable[str]:
    from ray import train
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    with tempfile.TemporaryDirectory() as folder:

        def loop() -> None:
            Path(folder, str(train.get_context().get_world_rank())).write_text(here())

        DataParallelTrainer(
            loop,
            scaling_config=train.ScalingConfig(num_workers=2),
            run_config=train.RunConfig(storage_path=f"{folder}/results"),
        ).fit()
        ranks = [Path(folder, rank).read_text() for rank in ("0", "1")]
    return set(ranks)


def main(address: str, library: str) -> None:
    ray.init(address, logging_level="error", log_to_driver=False)
    work: dict[str, Callable[[], Iterable[str]]] = {"data": data, "serve": serve, "tune": tune, "train": train}
    sys.stdout.write("\n" + json.dumps(sorted(work[library]())) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
