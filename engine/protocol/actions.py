"""The actions of a driver: the closed set of requests that `replica(me)` and `coordinator(run)` may yield.

A driver is two generators. An action is one thing that a part, or the coordinator, is asked to do; its result
is the value of the `yield`. The machines `part` and `coordinator` are the only interpreters, so a driver
knows nothing of messages, views, failures or checkpoints. All parts of a replica run the same
generator in step: it may branch only on the arguments of the driver and on values that all of them have.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, TypeAlias

from partita.engine.protocol.commands import Iterated, Request

# Actions of `replica(me)`.


@dataclass(frozen=True, slots=True)
class Portion:
    """A portion of the data: some examples of a client, in the order of one of its passes over its own.

    Args:
        client: the client, of those of the driver.
        visit: its passes in this step before this one.
        start, stop: places in the order of the pass, `[start, stop)`; at most the plan's batch.
    """

    client: int
    visit: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Share:
    """The examples that a replica of the view has in a step of it: the one under way, or a later one.

    Args:
        rank: of the replica in the view.
        ahead: steps from the one under way to that step.
    """

    rank: int
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class Compute:
    """Compute the gradient of this step's minibatch into the vector "gradient". Result: None.

    Args:
        step: the one that `me.steps()` has yielded.
        alone: the gradient is the mean over this replica's examples; else its share of the mean over those of
            all replicas of the view, so that their sum is that mean.
        of: these examples in the place of the step's, and the mean over them. A step may have several. Those
            of another replica's share can be predicted alone (`teaches`).
        teaches: add what the present parameters predict to the vector "predictions", with this weight, and
            compute nothing else: "gradient" then has no meaning. 0: compute the gradient.
        distil: weight of a further term of the loss: its distance from what "predictions" holds.
        entry: the minibatch of that vector, of those that the driver keeps (`Driver.taught_minibatches`).
        loss_scale: factor of the gradient, which may then be infinite or not a number. 1: it must be finite.
    """

    step: int
    alone: bool = False
    of: Portion | Share | None = None
    _: KW_ONLY
    teaches: float = 0.0
    distil: float = 0.0
    entry: int = 0
    loss_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Replace a vector by its sum over replicas of the view, or by its mean. Result: None.

    Args:
        vector: "gradient", "parameters", or a vector of the driver.
        by: the algorithm, see `exchange`.
        mean: divide the sum by the number of replicas.
        weight: factor of this replica's own numbers in the sum. With weights that add up to 1 over the
            replicas the result is the weighted mean.
        among: the ranks of the replicas that take part, ascending, the same on all of these; the vector of
            the others stays as it is (times `weight`). All replicas yield as many exchanges in a step. None:
            all ranks.
    """

    vector: str = "gradient"
    _: KW_ONLY
    by: Any
    mean: bool = False
    weight: float | None = None
    among: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ReduceScatter:
    """Sum a vector, each replica ranges of it: in the end its own ranges hold the sums. Result: None.

    Args:
        vector: "gradient", or a scratch vector of the driver.
        by: the algorithm, see `exchange`. It says which ranges are a replica's own: under `Broadcast(root)`
            all are those of one replica.
        among: the ranks of the replicas that take part, as in `AllReduce`; `root` counts these.
    """

    vector: str = "gradient"
    _: KW_ONLY
    by: Any
    among: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class AllGather:
    """Collect every replica's own ranges of a vector on all replicas of the view. Result: None.

    Args:
        vector: "parameters", or a scratch vector of the driver.
        by: the algorithm, as in `ReduceScatter`.
        among: the ranks of the replicas that take part, as in `AllReduce`.
    """

    vector: str = "parameters"
    _: KW_ONLY
    by: Any
    among: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ExchangeMessages:
    """Exchange messages that a compressor makes of a vector in one of its rounds. Result: None.

    After the last round the vector holds the sum over all replicas of the view, as far as the messages have
    it. What they lack belongs to the replica's state from the next safe point on.

    Args:
        step: the one that was computed last; the messages of some compressors change their size with it.
        compress: makes and reads the messages; opaque to every machine but for `rounds`, `items`, `stage`.
        turn: which of its rounds.
        by: the algorithm, see `exchange`; for messages that are collected one in which each replica begins
            with a range of its own: `Ring()`. By `Broadcast(root)` only that replica sends one, and the
            vector of all is what it means.
        vector: "gradient", or a scratch vector of the driver; a driver compresses one alone.
    """

    step: int
    _: KW_ONLY
    compress: Any
    by: Any
    turn: int = 0
    vector: str = "gradient"


@dataclass(frozen=True, slots=True)
class Norms:
    """Write sums of squares of the parameters and of "gradient" into "norms". Result: None, at once.

    Each part adds up the replica's own ranges of the last exchange of "gradient", and leaves zeros for all
    others: an `AllReduce` of "norms", among all parts of all replicas, makes the norms that some optimizers
    need.
    """


@dataclass(frozen=True, slots=True)
class Apply:
    """Update a vector by another one, as an optimizer updates parameters by their gradient. Result: None.

    Args:
        optimizer: computes the update; opaque to every machine.
        own: only the replica's own ranges, of the `ReduceScatter` before.
        gradient: "gradient", or a vector of the driver.
        to: "parameters", or a vector that the driver keeps with this optimizer (`kept_vectors`), whose state
            is of its own.
        updates: of this vector so far, for schedules and bias corrections; None: the steps so far.
    """

    optimizer: Any
    own: bool = False
    _: KW_ONLY
    gradient: str = "gradient"
    to: str = "parameters"
    updates: int | None = None


@dataclass(frozen=True, slots=True)
class Combine:
    """Replace a vector by a linear combination of vectors, number by number. Result: None, at once.

    Args:
        into: "parameters", "gradient", or a vector of the driver; may be a term, too.
        terms: factors by vector. Products are added in this order, in the type of the parameters.
        unlearned: factors in their place for numbers that no optimizer changes, which are running averages
            and parameters with `trainable=False`; None: the same.
    """

    into: str
    terms: Mapping[str, float]
    _: KW_ONLY
    unlearned: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Dots:
    """Add up inner products of vectors, over the whole network of each replica.

    Result: for each replica of the view, by rank, a tuple of the products of the pairs: float64, the same
    bits on all parts of all replicas, which may branch on them. That takes a small `AllReduce`.

    Args:
        pairs: two vectors each; a pair of one vector with itself gives its squared norm.
        by: the algorithm of the all-reduce, see `exchange`.
        among: the ranks of the replicas that take part, as in `AllReduce`; those of others have no meaning
            then. Among itself alone a replica waits for no other one.
    """

    pairs: tuple[tuple[str, str], ...]
    _: KW_ONLY
    by: Any
    among: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Keep:
    """Copy the parameters to the driver's scratch vector "start". Result: None, at once.

    Until `Restore` the step may change the parameters as often as it likes: where a view changes before that,
    they are set back to those of "start", and the step is done anew.
    """


@dataclass(frozen=True, slots=True)
class Restore:
    """Set the parameters back to those of "start", after the step's last exchange. Result: None.

    All parts of the replica come here before one of them goes on. So each can end the step by itself.
    """


@dataclass(frozen=True, slots=True)
class Pull:
    """Fetch parameters from the shards, each range that no fetch is under way of. Result: None, at once.

    Args:
        fragment: this one alone, see `Driver.n_fragments`; None: all.
        after_push: where a push is under way, only when it is acknowledged: so the values hold it.
    """

    fragment: int | None = None
    after_push: bool = False


@dataclass(frozen=True, slots=True)
class Install:
    """Make the fetched values that have arrived the part's parameters. Result: None, at once."""


@dataclass(frozen=True, slots=True)
class Push:
    """Send what has accumulated to the shards, each range with no push under way. Result: None, at once.

    Args:
        fragment: of this one alone, see `Driver.n_fragments`; None: of all.
    """

    fragment: int | None = None


@dataclass(frozen=True, slots=True)
class Room:
    """Wait until there is room for a step's gradient, and all parameters are here. Result: None.

    Where the shards apply each push on arrival: until no push is more than so many steps old. Where they sum
    the gradients of an evaluation: until the last gradient is on its way, and the parameters are those of the
    next unit's evaluation.

    Args:
        ahead: steps that may be computed beside a push under way; 0 waits until none is.
        fetched: wait until every fetch is answered, too.
    """

    ahead: int = 1
    fetched: bool = False


@dataclass(frozen=True, slots=True)
class Drain:
    """Push what is left, and wait until every shard has acknowledged everything. Result: None."""


@dataclass(frozen=True, slots=True)
class SafePoint:
    """Everything of the steps so far is done: a checkpoint or another view may come here. Result: None.

    After a change of the view the generator starts anew, with the step after the last safe point. So a step
    changes the parameters, and the vectors that the driver keeps, after its last exchange, and a safe point
    follows at once. A step may have
    more than one safe point: what comes after the first one is left out where a view changes.
    """


Action: TypeAlias = (
    Compute
    | AllReduce
    | ReduceScatter
    | AllGather
    | ExchangeMessages
    | Norms
    | Apply
    | Combine
    | Dots
    | Keep
    | Restore
    | Pull
    | Install
    | Push
    | Room
    | Drain
    | SafePoint
)
Program: TypeAlias = Generator[Action, Any, None]
"""The type of `replica(me)`."""

# Actions of `coordinator(run)`.


@dataclass(frozen=True, slots=True)
class Work:
    """Have all replicas do the steps of so many epochs, or of examples, after those done. Result: None."""

    epochs: int | None = None
    examples: int | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Write a checkpoint of what is done, and wait until it is written. Result: its number.

    Beside these, checkpoints are written at safe points at the interval of the run, and at the end.
    """


@dataclass(frozen=True, slots=True)
class Calls:
    """Answer the calls of the user, one after another, until the user ends the run. Result: none."""


@dataclass(frozen=True, slots=True)
class Validate:
    """Stop where all replicas agree on the parameters, and let them evaluate the validation data. Result: a
    `Decision` of the user's callbacks, which receive the sums.

    Args:
        at: examples of the run that are done, or iterations.
        minibatches: of the validation data; 0: the callbacks are asked without an evaluation.
    """

    at: int
    minibatches: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision of callbacks after a `Validate`.

    Args:
        checkpoint: a checkpoint of these parameters is to be written before the run goes on.
        stop: why the run is to end here; "" where it goes on.
        seconds: since the run began.
    """

    checkpoint: bool = False
    stop: str = ""
    seconds: float = 0.0


CoordinatorAction: TypeAlias = Work | Checkpoint | Validate | Calls | Request
"""A request is a tuple of operations on vectors, see `commands`: the shards execute them, and replicas
compute what it evaluates. Result: its scalars. Only a driver that `evaluates` yields requests.
"""

Plan: TypeAlias = Generator[CoordinatorAction | Iterated, Any, Any]
"""The type of `coordinator(run)`. An `Iterated` is displayed; who yields requests returns an `Outcome`."""
