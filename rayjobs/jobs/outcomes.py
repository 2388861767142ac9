"""The consequences of each outcome of an attempt, and of each reason to end one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rayjobs.core.failures import FailureClass
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.outcomes import EndReason, Outcome
from rayjobs.jobs.states import JobState


@dataclass(frozen=True, slots=True)
class Rule:
    """The consequences of an outcome.

    Attributes:
        final_state: The job's state if it is not retried; None: it always is.
        failure_class: Its class if the outcome determines it; None: the failure's own.
        spends_budget: Whether a retry after it counts against the budget of its class.
        is_loss: Whether the attempt's host or node was lost, perhaps because of the job.
    """

    final_state: JobState | None = JobState.FAILED
    failure_class: FailureClass | None = None
    spends_budget: bool = True
    is_loss: bool = False


RULES: Mapping[Outcome, Rule] = MappingProxyType(
    {
        Outcome.COMPLETED: Rule(JobState.COMPLETED, spends_budget=False),
        Outcome.FAILED: Rule(),
        Outcome.CANCELED: Rule(JobState.CANCELED, spends_budget=False),
        Outcome.TIME_LIMIT: Rule(failure_class=FailureClass.TIME_LIMIT),
        Outcome.OUT_OF_MEMORY: Rule(failure_class=FailureClass.OUT_OF_MEMORY),
        Outcome.STALLED: Rule(failure_class=FailureClass.STALLED),
        Outcome.NOT_STARTABLE: Rule(),
        Outcome.HOST_ERROR: Rule(failure_class=FailureClass.SYSTEM, is_loss=True),
        Outcome.LEASE_LOST: Rule(failure_class=FailureClass.NODE_LOST, is_loss=True),
        Outcome.NODE_LOST: Rule(failure_class=FailureClass.NODE_LOST, is_loss=True),
        # Losing the cluster ends all attempts, so no single job is to blame.
        Outcome.CLUSTER_LOST: Rule(failure_class=FailureClass.NODE_LOST),
        Outcome.PREEMPTED: Rule(failure_class=FailureClass.PREEMPTED),
        Outcome.PUT_BACK: Rule(None, spends_budget=False),
        Outcome.NOT_PLACED: Rule(None, spends_budget=False),
        Outcome.NOT_GROWN: Rule(None, spends_budget=False),
        Outcome.NOT_PREPARED: Rule(),
        Outcome.AGENT_LOST: Rule(),
        Outcome.OUT_OF_FILES: Rule(None, spends_budget=False),
        Outcome.NOT_STORED: Rule(spends_budget=False),
        Outcome.DEPENDENCY: Rule(JobState.CANCELED, spends_budget=False),
        Outcome.SYSTEM: Rule(failure_class=FailureClass.SYSTEM),
    }
)
LONGEST_PAUSE_S = 60.0  # before a retry; if a record has a longer one, a clock was set back
LOSSES = frozenset(one for one, rule in RULES.items() if rule.is_loss)
# Ends of a host whose node became unreachable for its target.
LOST_WITH_NODE = frozenset({Outcome.NODE_LOST, Outcome.LEASE_LOST})
# Unobserved ends: the time of such an end is that of its discovery.
UNSEEN = LOST_WITH_NODE | {Outcome.CLUSTER_LOST}


@dataclass(frozen=True, slots=True)
class EndRule:
    """The result of an attempt whose hosts were asked to end it.

    Attributes:
        failure_class: None: it has not failed.
        is_consequence: Whether the cause is on another node.
    """

    outcome: Outcome
    failure_class: FailureClass | None = None
    is_consequence: bool = False


ENDS: Mapping[EndReason, EndRule] = MappingProxyType(
    {
        EndReason.CANCELED: EndRule(Outcome.CANCELED),
        EndReason.PREEMPTED: EndRule(Outcome.PREEMPTED, FailureClass.PREEMPTED),
        EndReason.UNFOLLOWED: EndRule(Outcome.NODE_LOST, FailureClass.NODE_LOST),
        EndReason.NODE_ENDED: EndRule(Outcome.CANCELED, is_consequence=True),
    }
)


def failure_class(outcome: Outcome) -> FailureClass:
    """Return the class of an outcome that determines it.

    Raises:
        ValueError: the failure has a class of its own, or there is none.
    """
    found = RULES[outcome].failure_class
    if found is None:
        raise ValueError(f"the outcome {outcome} does not determine a failure class")
    return found


def spends_budget(outcome: str) -> bool:
    """Whether a retry counts against the budget; `outcome` may be the text of another version."""
    return outcome not in set(Outcome) or RULES[Outcome(outcome)].spends_budget


def final_state(outcome: Outcome) -> JobState:
    """Return the state of a job that is not retried after an attempt's outcome.

    Raises:
        ValueError: such a job is always retried.
    """
    state = RULES[outcome].final_state
    if state is None:
        raise ValueError(f"a job is queued again after the outcome {outcome}")
    return state
