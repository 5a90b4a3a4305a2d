"""Run by the Python of an environment with openvino-genai: reads a task from standard input, prints what it took as JSON.

    {"model": PATH, "threads": 2, "scheduler": {...}, "at_once": 16, "warm_up": [[[ids], num_new], ...], "requests": [...]}

Owns the steps of OpenVINO GenAI's ContinuousBatchingPipeline. Requests are added between steps, as soon as fewer than `at_once`
are open. Imports nothing of Sapwood. Invariant: loading and the warm-up are not part of what is timed.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import openvino
import openvino_genai


def pipeline(task: dict[str, Any]) -> Any:
    """The model, with the scheduler's settings of the task."""
    scheduler = openvino_genai.SchedulerConfig()
    for name, value in task["scheduler"].items():
        setattr(scheduler, name, value)
    return openvino_genai.ContinuousBatchingPipeline(task["model"], scheduler, "CPU", {"INFERENCE_NUM_THREADS": task["threads"]})


def options(num_new: int) -> Any:
    """Greedy, and no id ends a text."""
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = num_new
    config.do_sample = False
    config.ignore_eos = True
    return config


def hold(pipe: Any, requests: list[tuple[list[int], int]], at_once: int) -> list[list[float]]:
    """Answer all requests; returns for each the seconds after the start at which its tokens were there."""
    moments: list[list[float]] = [[] for _ in requests]
    handles: dict[int, Any] = {}
    waiting = list(enumerate(requests))[::-1]
    began_s = time.perf_counter()
    while waiting or handles:
        while waiting and len(handles) < at_once:
            number, (ids, num_new) = waiting.pop()
            handles[number] = pipe.add_request(number, openvino.Tensor(np.array([ids], dtype=np.int64)), options(num_new))
        pipe.step()
        now_s = time.perf_counter() - began_s
        for number, handle in list(handles.items()):
            while handle.can_read():
                moments[number] += [now_s] * sum(len(output.generated_ids) for output in handle.read().values())
            if handle.get_status() != openvino_genai.GenerationStatus.RUNNING:
                del handles[number]
    return moments


def summary(moments: list[list[float]]) -> dict[str, float]:
    """What is told of a run: seconds until each request had a first token, and in all; tokens in all, and since the former."""
    every = [moment for of_request in moments for moment in of_request]
    all_first_s = max((of_request[0] for of_request in moments if of_request), default=0.0)
    return {
        "all_first_s": all_first_s,
        "duration_s": max(every, default=0.0),
        "output_tokens": len(every),
        "tokens_since": sum(moment > all_first_s for moment in every),
    }


def main() -> None:
    """The task, once to warm up and once on the clock."""
    task = json.load(sys.stdin)
    pipe = pipeline(task)
    hold(pipe, task["warm_up"], task["at_once"])
    print(json.dumps(summary(hold(pipe, task["requests"], task["at_once"]))))


if __name__ == "__main__":
    main()
