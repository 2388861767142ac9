"""The dependency graph of a pipeline's steps, and its problems."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from functools import cached_property

from rayjobs.core.errors import Problem
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.pipelines.spec import (
    PipelineError,
    PipelineSpec,
    outputs_of,
    parameters_in,
    step_sources,
)

DEFAULT_DESTINATION = "workspaceblobstore/azureml/{run-id}/{output-name}"


@dataclass(frozen=True)
class Edge:
    """One step waits for another.

    Attributes:
        before: The step that must complete.
        after: The step that waits.
        output: The output of `before` that is read; None if only the order matters.
        input: Input of `after` that reads it.
    """

    before: str
    after: str
    output: str | None = None
    input: str | None = None


@dataclass(frozen=True)
class Graph:
    """Steps and edges of a valid pipeline.

    Attributes:
        order: The steps in topological order, and otherwise as the pipeline lists them.
        edges: All edges.
    """

    order: tuple[str, ...]
    edges: tuple[Edge, ...]

    def before(self, step: str) -> tuple[str, ...]:
        """Return the steps that a step waits for, without repeats."""
        return tuple(dict.fromkeys(one.before for one in self._into.get(step, ())))

    @cached_property
    def _into(self) -> Mapping[str, list[Edge]]:
        found: dict[str, list[Edge]] = {}
        for edge in self.edges:
            found.setdefault(edge.after, []).append(edge)
        return found


def graph_of(spec: PipelineSpec) -> Graph:
    """Return a pipeline's graph.

    Raises:
        PipelineError: a cycle, an input that no step produces, two steps that write one output, an
            unknown step or parameter; lists all problems with their paths.
    """
    order, edges, problems = looked_at(spec)
    if problems:
        raise PipelineError(problems=problems)
    return Graph(order, edges)


def looked_at(spec: PipelineSpec) -> tuple[tuple[str, ...], tuple[Edge, ...], list[Problem]]:
    """Return the order, edges and all problems; the order is empty if there is a cycle."""
    problems = [*_unknown(spec), *_same_outputs(spec)]
    edges = [
        edge
        for name, step in spec.steps.items()
        for edge in (
            *(
                Edge(producer, name, output, given)
                for given, producer, output in step_sources(step)
            ),
            *(Edge(before, name) for before in step.after),
        )
        if edge.before in spec.steps
    ]
    order, cycle = _ordered(spec, edges)
    if cycle:
        problems.append(
            Problem(
                f"steps.{cycle[0]}",
                f"waits for itself: {' → '.join((*cycle, cycle[0]))}.",
                "Remove one of these dependencies.",
            )
        )
    return order, tuple(edges), problems


def _unknown(spec: PipelineSpec) -> Iterator[Problem]:
    for name, step in spec.steps.items():
        for index, before in enumerate(step.after):
            if before not in spec.steps:
                yield Problem(
                    f"steps.{name}.after[{index}]",
                    f"there is no step {before!r}.",
                    _near(before, spec.steps),
                )
        for given, producer, output in step_sources(step):
            path = f"steps.{name}.inputs.{given}"
            if producer not in spec.steps:
                yield Problem(
                    path,
                    f"no step produces it: there is no step {producer!r}.",
                    _near(producer, spec.steps),
                )
            elif output not in (outputs := outputs_of(spec.steps[producer])):
                yield Problem(
                    path,
                    f"no step produces it: step {producer!r} has no output {output!r}.",
                    _near(output, outputs),
                )
        for parameter in dict.fromkeys(
            parameters_in([dict(step.job), dict(step.params), step.sweep and step.sweep.definition])
        ):
            if parameter not in spec.parameters:
                yield Problem(
                    f"steps.{name}",
                    f"there is no parameter {parameter!r}.",
                    _near(parameter, spec.parameters),
                )


def _near(word: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    if near:
        return f"Did you mean {near[0]!r}?"
    return f"The known names are: {', '.join(known) or 'none'}."


def _same_outputs(spec: PipelineSpec) -> Iterator[Problem]:
    """Find outputs with the same destination; a destination with the run's id is unique."""
    seen: dict[str, str] = {}
    for name, step in spec.steps.items():
        for output, given in outputs_of(step).items():
            destination = given.get("destination") if isinstance(given, Mapping) else given
            destination = str(destination or DEFAULT_DESTINATION).replace(
                "{output-name}", str(output)
            )
            destination = destination.replace("{run-id}", f"{{run-id of {name}}}").rstrip("/")
            path = f"steps.{name}.outputs.{output}"
            if destination in seen:
                yield Problem(
                    path,
                    f"writes to {destination}, and so does {seen[destination]}.",
                    "Give one of them another destination, or one with {run-id}.",
                )
            seen.setdefault(destination, path)


def _ordered(spec: PipelineSpec, edges: list[Edge]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the steps in topological order, or a cycle if there is no such order."""
    into: dict[str, dict[str, None]] = {name: {} for name in spec.steps}
    out: dict[str, list[str]] = {name: [] for name in spec.steps}
    for edge in edges:
        if edge.before not in into[edge.after]:
            into[edge.after][edge.before] = None
            out[edge.before].append(edge.after)
    waits = {name: len(before) for name, before in into.items()}
    ready = [name for name in spec.steps if not waits[name]]
    order: list[str] = []
    for name in ready:  # grows during the loop
        order.append(name)
        for after in out[name]:
            waits[after] -= 1
            if not waits[after]:
                ready.append(after)
    if len(order) == len(spec.steps):
        return tuple(order), ()
    left = set(spec.steps) - set(order)
    path: list[str] = []
    at = next(name for name in spec.steps if name in left)
    while at not in path:
        path.append(at)
        at = next(before for before in into[at] if before in left)
    cycle = path[path.index(at) :][::-1]
    first = min(range(len(cycle)), key=lambda index: [*spec.steps].index(cycle[index]))
    return (), (*cycle[first:], *cycle[:first])
