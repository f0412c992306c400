"""A calibration monitor for labelled feedback: constant memory, and an alarm that may be looked at any time.

Each answer arrives as a confidence c and whether it was correct, a. The monitor tests one statement: given everything
that came before, a is correct with chance c. It bets against that: see `Bets`. The wealth of a bettor against a fair
coin reaches 1/α with chance at most α, over all time (Ville 1939), so an alarm at wealth 1/α is false with chance at
most α however often one looks and however long the stream runs.

"Given everything that came before" is an assumption: answers about the same patient, image or minute are often right or
wrong together, and a stream that logs them one by one raises false alarms although its average is calibrated. Batches
lift it: answers of one batch may depend on each other in any way, only batches must not.
"""

import base64
import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import numpy as np
from scipy.special import expit, logit

from calibrant.core.arrays import Array, Json, check_labels, check_matrix, check_values, check_whole
from calibrant.core.bins import width_edges, width_index
from calibrant.core.errors import InputError, warn_user
from calibrant.core.softmax import logsumexp, softmax

STATE_FORMAT = 7
STATE_START = '{"format": '
"""First characters of a state, by which a damaged one is distinguished from other files."""
MAX_BATCHES = 2000
"""Names of batches that are remembered: one that returns after as many others counts as new."""
FLOOR_DRAWS = 400
MAX_WINDOW = 1_000_000
FIRST_GROUPS = 16
MAX_GROUPS = 200
OTHER = "other"
"""The group of all names that come when there are MAX_GROUPS."""
LATE = (
    "answers came after their batch was judged and make no bet: give the answers of a batch together, and every batch "
    "a name of its own"
)
CHUNK = 4096
DIGITS = (2, 6)
"""Confidences may be rounded to this many decimals, fewest and most; more are as good as exact."""
EXACT = DIGITS[1] + 1
"""Number of decimals that stands for a confidence that was not rounded."""
LIMITS = {
    "window": (1, MAX_WINDOW),
    "n_bins": (1, 1_000),
    "batch": (1, MAX_WINDOW),
    "digits": (DIGITS[0], EXACT),
    "seed": (0, 2**63),
}
"""Settings of a monitor that are whole numbers, each with the least and the most it may be."""
BAD_VALUES = (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, RecursionError)
"""What reading a state that is none may raise."""
CLAIMS = (
    *((1.0, shift) for shift in (-4.0, -2.0, -1.0, -0.5, -0.25, 0.25, 0.5, 1.0, 2.0, 4.0)),
    *((scale, 0.0) for scale in (0.5, 0.75, 1.33, 2.0)),
)
"""(s, δ) of the bets on all confidences: less or more accurate than said, too extreme or too timid.

The largest shifts matter for batches: the mean over a batch is less variable than a row, and a larger claim is a larger
stake on it.
"""
ROWS, BATCHES = False, True
"""The plans of monitors that bet row by row and batch by batch."""
SHARES = {
    ROWS: (*[0.09] * 5, *[0.04] * 5, 0.05, 0.05, 0.025, 0.025),
    BATCHES: (0.13, 0.45, 0.18, 0.05, 0.02, *[0.01] * 5, 0.03, 0.02, 0.005, 0.005),
}
"""Money of each claim by plan.

Overconfidence has the most, because drift and new data nearly always show that way. Batches have a plan of their own:
there the claim of two logits less is nearly the best bet for many shapes of confidence.
"""
BIN_SHIFTS = (-1.0, 1.0)
"""δ of the bets on one bin only; they share the money that the claims leave."""
BATCH_PACE = 100.0
"""How fast money enters the bets on batches; chosen on simulated ones, for breaks at the start and after 200 alike."""
CLIP = 1e-6
"""A confidence this near to 0 or 1 stands for the whole interval up to 0 or 1."""


class Stateful:
    """Something whose attributes `STATE` are all that it remembers: numbers, texts, arrays, and the same nested."""

    STATE: ClassVar[tuple[str, ...]] = ()

    def state(self) -> Any:
        """The attributes by name."""
        return {name: getattr(self, name) for name in self.STATE}

    def restore(self, state: Any) -> None:
        """Take over what became of `state` in JSON, bit for bit; values of another type or size raise an error."""
        if state.keys() != {*self.STATE}:
            raise InputError(f"the state holds other things, {sorted(state)[:4]}, than {self.STATE}")
        for name in self.STATE:
            setattr(self, name, _like(getattr(self, name), state[name], name))


def _plain(value: Any) -> Any:
    """What JSON can hold of a value; of an array its bytes."""
    return value.state() if isinstance(value, Stateful) else base64.b64encode(value.tobytes()).decode()


def _like(present: Any, found: Any, name: str) -> Any:
    """The value that `_plain` wrote, if it can take the place of the present one."""
    if isinstance(present, Stateful):
        present.restore(found)
        return present
    if isinstance(present, dict):
        # names that came before are True each
        return {key: _like(present.get(key, True), inner, key) for key, inner in found.items()}
    if isinstance(present, np.ndarray):
        array = np.frombuffer(base64.b64decode(found, validate=True), dtype=present.dtype)
        if array.size != present.size or np.isnan(array).any():
            raise InputError(f"the state holds {array.size} numbers of {name}, but {present.size} are needed")
        return array.reshape(present.shape).copy()
    kinds = (int, str, bool, type(None)) if present is None else (type(present),)
    if type(found) not in kinds or (type(found) is int and found < 0):
        raise InputError(f"the state holds {str(found)[:40]!r} for {name}")
    return found


def is_new(known: dict[str, bool], name: str, most: int) -> bool:
    """Whether a name is not among the latest, of which at most so many are known; it is from now on."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    came_before = known.pop(digest, False)
    known[digest] = True  # a dict keeps the order of insertion
    if len(known) > most:
        del known[next(iter(known))]
    return not came_before


class Bets(Stateful):
    """Bets against calibration: a test martingale that mixes over what broke, how strongly, where and when.

    Bet k claims that the chance of being correct is not c but q_k(c), with logit q_k = s_k·logit c + δ_k, everywhere or
    in one confidence bin only. Its stake is multiplied by the likelihood ratio

        f = q/c if correct, (1 − q)/(1 − c) if not,        E[f | past, c] = 1 when the model is calibrated.

    A batch of m answers makes one bet with the mean of its rows' factors, f̄ = Σ f_i / m. Each f_i has mean 1 given the
    earlier batches, and a mean is linear, so E[f̄ | earlier batches] = 1 whatever the dependence inside the batch. Rows
    that are independent given the past are batches of one.

    A bet need not start at the first batch. Money h_r enters it before batch r, Σ_r h_r ≤ 1, the rest waits outside, so

        S_t = f̄_t · (S_{t−1} + h_t),        wealth_t = Σ_k w_k (S_t,k + 1 − Σ_{r≤t} h_r).

    Being a mixture of martingales that start at 1, the wealth is one too, and P(sup_t wealth_t ≥ 1/α) ≤ α (Ville 1939).
    Money that enters late has not been lost on the calibrated past, so a break after a million quiet rows is found
    about as fast as a break at the start.

    Stakes are logarithms, and memory is constant, also for a batch that is still open.
    """

    STATE = ("plan", "n", "n_open", "log_wealth", "_log_stake", "_open_sum")

    def __init__(self, n_bins: int, plan: bool = ROWS) -> None:
        self.n_bins, self.plan = n_bins, plan
        self.n = self.n_open = 0
        self.log_wealth = 0.0
        """Logarithm of the whole wealth after the last closed batch."""
        in_bins = [(1.0, shift) for shift in BIN_SHIFTS for _ in range(n_bins)]
        self._scale, self._shift = np.array([*CLAIMS, *in_bins]).T
        self._log_stake = np.full(len(self._shift), -np.inf)
        self._open_sum = np.zeros(len(self._shift))

    @property
    def _log_share(self) -> Array:
        """Log money of each bet; those on bins share what the claims leave."""
        shares, n_others = SHARES[self.plan], len(BIN_SHIFTS) * self.n_bins
        return np.log([*shares, *[(1 - sum(shares)) / n_others] * n_others])

    def play(
        self, confidence: Array, correct: Array, *, slack: float | Array = 0.0, ends: Array | None = None
    ) -> Array:
        """Log wealth after each batch that closes among these rows, which come in the order they happened.

        `slack` (a number, or one per row) is how far the true confidence may lie from the given one, as after rounding.
        `ends` (n,) says after which rows a batch closes; every row is a batch of its own where it is None.
        """
        log_factor = self._log_factors(confidence, correct, slack)
        if ends is not None:
            log_factor = self._batch_factors(log_factor, np.flatnonzero(ends) + 1)
        return self._stake(log_factor)

    def close(self) -> Array:
        """Close the open batch, if any; log wealth after it (0 or 1 values)."""
        none = np.empty((0, len(self._shift)))
        return self._stake(self._batch_factors(none, np.zeros(1, dtype=int)) if self.n_open else none)

    def _stake(self, log_factor: Array) -> Array:
        """Play the factors (batches × bets); log wealth after each."""
        if not len(log_factor):
            return np.empty(0)
        waiting = _waiting(self.n + np.arange(len(log_factor) + 1), self.plan)
        # S_t = P_t (S_0 + Σ_{r≤t} h_r / P_{r−1}), P_t = Π_{s≤t} f_s: the recursion without a Python loop
        log_product = np.cumsum(log_factor, axis=0)
        entering = np.log(waiting[:-1] - waiting[1:])[:, None] - (log_product - log_factor)
        entering[0] = np.logaddexp(entering[0], self._log_stake)
        stakes = np.logaddexp.accumulate(entering, axis=0) + log_product
        # a copy, because a view would keep the whole block alive
        self._log_stake, self.n = stakes[-1].copy(), self.n + len(log_factor)
        # log(Σ_k w_k S_k + waiting) of each row
        log_wealth = logsumexp(np.column_stack([self._log_share + stakes, np.log(waiting[1:])]))
        self.log_wealth = float(log_wealth[-1])
        return log_wealth

    def _batch_factors(self, log_factor: Array, stops: Array) -> Array:
        """log f̄ of every batch, which close before the rows `stops`; the rows behind stay in the open batch."""
        starts = np.append(0, stops)
        sums = np.add.reduceat(np.vstack([np.exp(log_factor), np.zeros(log_factor.shape[1])]), starts, axis=0)
        counts = np.diff(starts, append=len(log_factor))
        sums[0] += self._open_sum
        counts[0] += self.n_open
        self._open_sum, self.n_open = sums[-1].copy(), int(counts[-1])
        return np.log(sums[:-1] / counts[:-1, None])

    def _log_factors(self, confidence: Array, correct: Array, slack: float | Array) -> Array:
        """log f of each row and bet (n × bets), at most fair for every chance in [low, high] = confidence ± slack.

        E[f] is linear in the true chance and falls when q lies below the tested value, so a claim below `low` is
        tested at `low` and a claim above `high` at `high`. A claim on neither side, or on both, sits the row out.
        Where an end of the interval is within CLIP of 0 or 1, claims beyond it sit out.
        """
        low = np.clip(confidence - slack, 0.0, 1 - CLIP)[:, None]
        high = np.clip(confidence + slack, CLIP, 1.0)[:, None]
        # q of every bet for both ends
        below, above = (expit(logit(np.clip(end, CLIP, 1 - CLIP)) * self._scale + self._shift) for end in (low, high))
        falls = (below < low) & (low >= CLIP)
        rises = (above > high) & (high <= 1 - CLIP)
        sides = [falls & ~rises, rises & ~falls]
        # a bet that sits out claims what is tested
        tested, claimed = (np.select(sides, ends, 0.5) for ends in ((low, high), (below, above)))
        factor = np.where(correct[:, None], np.log(claimed / tested), np.log1p(-claimed) - np.log1p(-tested))
        own_bin = np.tile(np.arange(self.n_bins), len(BIN_SHIFTS))
        factor[:, len(CLAIMS) :][width_index(confidence, self.n_bins)[:, None] != own_bin] = 0.0
        return factor

    def suspect(self) -> str:
        """The claim that has won most, in words that fit a confidence and a risk."""
        richest = int(np.argmax(self._log_share + self._log_stake))
        if not self._shift[richest]:
            return f"the probabilities are too {'extreme' if self._scale[richest] < 1 else 'timid'}"
        what = f"the probabilities are too {'high' if self._shift[richest] < 0 else 'low'}"
        if richest < len(CLAIMS):
            return what
        low, high = width_edges(self.n_bins)[(richest - len(CLAIMS)) % self.n_bins :][:2]
        return f"{what} from {low:.2g} to {high:.2g}"


def _waiting(step: Array, plan: bool) -> Array:
    """Share of the money that has not entered by a step: 1 at step 0, falling so slowly that late breaks pay too.

    Row by row 1/log2(t + 2): between rows t and 2t about 1/log²t enters, so that a break after t quiet rows costs the
    bettor a factor of about t·log²t, whose logarithm is what the delay grows with. Batches are fewer, and each of them
    says more: 1/(1 + t/100) keeps more for the first thousand of them.
    """
    return 1 / (1 + step / BATCH_PACE) if plan is BATCHES else 1 / np.log2(step + 2.0)


@dataclass(frozen=True)
class MonitorReport:
    """What the monitor knows now; `alarm_at` is the count of answers at which the alarm rose, or None.

    `n_late` answers belong to batches that were judged before they came: they are in the figures, not in the evidence.
    Where risks are watched, `confidence` is their mean, `accuracy` the share that came true, and `overconfidence` and
    `underconfidence` say by how much risks are too high and too low.
    """

    n: int
    n_window: int
    n_batches: int
    n_open: int
    n_late: int
    confidence: float
    accuracy: float
    ece: float
    overconfidence: float
    underconfidence: float
    noise_floor: float
    noise_floor_95: float
    evidence: float
    alarm: bool
    alarm_at: int | None
    suspect: str | None

    def to_dict(self) -> Json:
        """The report as plain numbers for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class GroupReport(MonitorReport):
    """The report of a whole stream with those of its groups, alarms first; `alarms` names the groups with an alarm."""

    alarms: list[str]
    groups: list[Json]


class DamagedStateError(InputError):
    """A state that a monitor wrote, but that was cut off or changed since."""


class Kept(Stateful):
    """Settings and a state that are kept as text."""

    settings: Json

    def to_json(self) -> str:
        """Settings and state as JSON: `from_json` continues with the same bits."""
        return json.dumps({"format": STATE_FORMAT, "settings": self.settings, "state": self}, default=_plain)

    @classmethod
    def from_json(cls, text: str, present: Self | None = None) -> Self:
        """What `to_json` described, as a new object or taken over by one of the same settings; else InputError."""
        try:
            document = json.loads(text)
            kept, state = document["settings"], document["state"]
            if document["format"] != STATE_FORMAT:
                raise InputError(f"it has format {document['format']!r}, but {STATE_FORMAT} is read")
            present = present or cls(**kept)
            if kept != present.settings:
                raise InputError(
                    f"it was kept with other monitor options, {kept}, but these are {present.settings}: use the same"
                )
            is_same_kind = state.keys() == {*present.STATE}
        except InputError:
            raise
        except BAD_VALUES as error:
            is_ours = text.startswith(STATE_START) or not text.strip("\0\n ")
            message = f"it is not the state of a monitor ({type(error).__name__}: {error})"
            raise (DamagedStateError if is_ours else InputError)(message) from error
        if not is_same_kind:
            raise InputError(f"it is not the state of a monitor like this: it holds other things, {sorted(state)[:4]}")
        try:
            present.restore(state)
        except BAD_VALUES as error:
            raise DamagedStateError(f"it is not the state of a monitor any more: {error}") from error
        return present


@dataclass(kw_only=True, eq=False)
class Monitor(Kept):
    """Watch calibration on a stream of labelled answers.

    Parameters
    ----------
    false_alarm_rate : the largest chance α of ever raising an alarm on a calibrated stream, however long.
    window : how many of the latest answers the figures of `report` describe.
    n_bins : equal-width confidence bins of the windowed ECE and of the bin-wise bets.
    batch : how many consecutive answers make one bet. The promise then holds whatever the dependence inside a batch;
        with None every answer is a bet, and answers must be independent given their confidences. Batches of unequal
        size are given to `update_answers` by name.
    digits : decimals to which the confidences were rounded (2 to 6; 7 for not at all). Bets are then fair for every
        confidence that rounds to the given one. None looks at the values: the most decimals seen so far, at least 2.
    seed : of the draws behind the noise floor.

    Examples
    --------
    >>> monitor = Monitor(false_alarm_rate=0.01)
    >>> confidence = np.full(300, 0.9)
    >>> monitor.update_answers(confidence, np.arange(300) % 2 == 0)     # right half of the time
    >>> report = monitor.report()
    >>> report.alarm, round(report.overconfidence, 2)
    (True, 0.4)
    """

    STATE: ClassVar[tuple[str, ...]] = (
        "n",
        "n_late",
        "alarm_at",
        "open_batch",
        "_batches",
        "_digits_seen",
        "_confidence",
        "_correct",
        "_bets",
    )

    false_alarm_rate: float = 0.01
    window: int = 2000
    n_bins: int = 15
    batch: int | None = None
    digits: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.false_alarm_rate < 1:
            raise InputError(f"false_alarm_rate must lie between 0 and 1, got {self.false_alarm_rate!r}")
        self.false_alarm_rate = float(self.false_alarm_rate)
        self.limit = 1 / self.false_alarm_rate
        """The evidence at which the alarm rises."""
        for name, (least, most) in LIMITS.items():
            value = getattr(self, name)
            if value is None and name in ("batch", "digits"):
                continue
            setattr(self, name, check_whole(value, name, least))
            if value > most:
                raise InputError(f"{name} must be from {least} to {most}, got {value}")
        self.settings = asdict(self)
        self.reset()

    def reset(self) -> None:
        """Forget everything, as after a new calibrator went live."""
        self.n = self.n_late = 0
        self._batches: dict[str, bool] = {}
        self.alarm_at: int | None = None
        self._bets = Bets(self.n_bins, self.batch is not None)
        self.open_batch: str | None = None
        """Name of the batch that is still open, where batches are named."""
        self._digits_seen = self.digits or DIGITS[0]
        self._confidence = np.zeros(self.window)
        self._correct = np.zeros(self.window, dtype=bool)

    @property
    def alarm(self) -> bool:
        """Whether the alarm has ever risen; it stays until `reset`."""
        return self.alarm_at is not None

    @property
    def evidence(self) -> float:
        """Wealth of the bet against calibration: an e-value, 1 at the start; the alarm rises at 1/α."""
        return float(np.exp(min(self._bets.log_wealth, 700.0)))

    def update(self, probabilities: Any, labels: Any, *, from_logits: bool = False, batches: Any = None) -> None:
        """Take predictions (n×K) and their true labels (n,), in the order they happened.

        Of two classes, or of one probability per row (n,), the risk of the positive class is tested, not the confidence
        of the predicted one: a risk that is too low everywhere is too unsure of some answers and too sure of others,
        and by confidence the two cancel.
        """
        self.update_answers(*stated(probabilities, labels, from_logits=from_logits), batches=batches)

    def update_answers(self, confidence: Any, correct: Any, *, batches: Any = None) -> None:
        """Take confidences (n,) in [0, 1] and whether each answer was correct (n,), in the order they happened.

        `batches` (n,) names the batch of each answer. A batch is judged when a new name comes, or at `close_batch`;
        answers that come later under its name make no bet, because they may depend on those that did.
        """
        given, flags = np.atleast_1d(confidence, correct)
        confidences = given.astype(np.float64)
        if confidences.ndim != 1 or flags.shape != confidences.shape:
            raise InputError(f"confidence has shape {confidences.shape}, correct has shape {flags.shape}: give (n,)")
        if flags.dtype.kind not in "biuf" or not np.isin(flags, (0, 1)).all():
            raise InputError(f"correct must be true/false (or 1/0), got dtype {flags.dtype}")
        bad = confidences[~((confidences >= 0) & (confidences <= 1 + 1e-6))]
        if len(bad):
            raise InputError(f"confidence must lie in [0, 1], got {bad[0]:g}")
        names = None
        if batches is not None:
            names = _texts(batches)
            if self.batch is not None:
                raise InputError(
                    f"batches are named, but this monitor makes batches of {self.batch}: use one of the two"
                )
            if names.shape != flags.shape:
                raise InputError(f"batches has {len(names)} names, but there are {len(flags)} answers")
            if not self.n:
                self._bets = Bets(self.n_bins, BATCHES)
        slack = self._slack(given)
        confidences, flags = np.minimum(confidences, 1.0), flags.astype(bool)
        for start in range(0, len(flags), CHUNK):  # bounded memory for any length
            part = slice(start, start + CHUNK)
            self._take(confidences[part], flags[part], slack[part], None if names is None else names[part])

    def close_batch(self) -> None:
        """Judge the open batch now: no more of its answers will come."""
        self._notice(self._bets.close(), [self.n])
        self.open_batch = None

    def _slack(self, confidence: Array) -> Array:
        """How far each true confidence may lie from the given one: half a unit of the last decimal."""
        digits = np.full(len(confidence), self._digits_seen)
        if self.digits is None and len(digits):
            # decimals depend on confidences only, never on outcomes, so a bet may use all up to its own row
            found = np.full(len(confidence), EXACT)
            # in float32, since many numbers were stored so on their way
            narrow = confidence.astype(np.float16 if confidence.dtype == np.float16 else np.float32)
            for count in reversed(range(DIGITS[0], EXACT)):
                found[confidence.astype(np.float64).round(count).astype(narrow.dtype) == narrow] = count
            digits = np.maximum.accumulate(np.maximum(digits, found))
            self._digits_seen = int(digits[-1])
        return np.where(digits >= EXACT, 0.0, 0.5 * 10.0**-digits)

    def _take(self, confidence: Array, correct: Array, slack: Array, names: Array | None) -> None:
        counts, ends, betting = self.n + 1 + np.arange(len(correct)), None, np.ones(len(correct), dtype=bool)
        if self.batch is not None:
            ends = counts % self.batch == 0
        elif names is None:
            self.close_batch()
        else:
            last = self.open_batch
            for place, name in enumerate(names):
                if name != self.open_batch:
                    betting[place] = is_new(self._batches, name, MAX_BATCHES)
                    self.open_batch = name if betting[place] else self.open_batch
            names = names[betting]
            ends = np.append(names[1:] != names[:-1], False)[: len(names)]
            if len(names) and names[0] != last:
                self._notice(self._bets.close(), [self.n])
        log_wealth = self._bets.play(confidence[betting], correct[betting], slack=slack[betting], ends=ends)
        at = counts[betting]
        self._notice(log_wealth, at if ends is None else at[ends])
        if not betting.all():
            self.n_late += int((~betting).sum())
            warn_user(LATE)
        # where more answers than the window holds meet in a place, numpy keeps the last
        places = (counts - 1) % self.window
        self._confidence[places], self._correct[places] = confidence, correct
        self.n += len(correct)

    def _notice(self, log_wealth: Array, counts: Any) -> None:
        """Raise the alarm where the log wealth first reaches the limit; `counts` are the answers seen by then."""
        crossed = np.flatnonzero(log_wealth >= np.log(self.limit))
        if self.alarm_at is None and len(crossed):
            self.alarm_at = int(counts[crossed[0]])

    def report(self) -> MonitorReport:
        """Figures of the latest `window` answers, with the ECE a calibrated model would show by chance."""
        n_window = min(self.n, self.window)
        if n_window == 0:
            raise InputError("the monitor has seen 0 answers: update it with at least 1 before asking for a report")
        confidence, correct = self._confidence[:n_window], self._correct[:n_window]
        over, under = (float(sums[0]) for sums in _over_under(confidence, correct[None], self.n_bins))
        chance = np.random.default_rng(self.seed).random((FLOOR_DRAWS, n_window), dtype=np.float32) < confidence
        floor = sum(_over_under(confidence, chance, self.n_bins))
        return MonitorReport(
            n=self.n,
            n_window=n_window,
            n_batches=self._bets.n,
            n_open=self._bets.n_open,
            n_late=self.n_late,
            confidence=float(confidence.mean()),
            accuracy=float(correct.mean()),
            ece=over + under,
            overconfidence=over,
            underconfidence=under,
            noise_floor=float(np.mean(floor)),
            noise_floor_95=float(np.quantile(floor, 0.95)),
            evidence=self.evidence,
            alarm=self.alarm,
            alarm_at=self.alarm_at,
            suspect=None if self.alarm_at is None else self._bets.suspect(),
        )


class GroupMonitor(Monitor):
    """Watch calibration on a stream of labelled answers, as a whole and for each group.

    Takes the parameters of `Monitor`; `false_alarm_rate` α covers the whole stream and all groups together. Half of it
    belongs to the stream as a whole, half to the groups. Group j, in the order of first appearance, gets the share w_j,
    Σ_j w_j ≤ 1, so that the chance of any false alarm at all is at most

        α/2 + Σ_j w_j α/2 ≤ α.

    The group of an answer is known before its outcome, so numbering groups as they appear spends nothing twice. The
    first 16 groups get 1/32 each, the next 32 get 1/128 each, the next 64 get 1/512: no number of groups has to be
    known ahead. When there are 200, all new names count as one group, `other`.

    Examples
    --------
    >>> monitor = GroupMonitor(false_alarm_rate=0.01)
    >>> hospital = np.array(["north", "south"])[np.arange(2000) % 2]
    >>> correct = np.where(hospital == "north", np.arange(2000) % 20 < 18, np.arange(2000) % 10 < 5)
    >>> monitor.update_answers(np.full(2000, 0.9), correct, hospital)
    >>> monitor.alarms
    ['south']
    """

    STATE = (*Monitor.STATE, "groups")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.limit *= 2  # half of the rate is that of the whole stream

    def reset(self) -> None:
        """Forget everything, groups included."""
        super().reset()
        self.groups: dict[str, Monitor] = {}

    @property
    def alarm(self) -> bool:
        """Whether the alarm of the whole stream or of any group has ever risen."""
        return super().alarm or bool(self.alarms)

    @property
    def alarms(self) -> list[str]:
        """The groups whose alarm has risen."""
        return [name for name, monitor in self.groups.items() if monitor.alarm]

    def update(
        self, probabilities: Any, labels: Any, groups: Any = (), *, from_logits: bool = False, batches: Any = None
    ) -> None:
        """Take predictions (n×K), their true labels (n,) and groups (n,), in the order they happened."""
        self.update_answers(*stated(probabilities, labels, from_logits=from_logits), groups, batches=batches)

    def update_answers(self, confidence: Any, correct: Any, groups: Any = (), *, batches: Any = None) -> None:
        """Take confidences, whether each answer was correct, and its group (each of shape (n,)), in order."""
        confidences, flags = np.atleast_1d(confidence, correct)
        names = _texts(groups)
        if names.shape != confidences.shape:
            raise InputError(f"groups has shape {names.shape}, but confidence has {confidences.shape}: give (n,) both")
        before, size = self.n, self.batch
        super().update_answers(confidences, flags, batches=batches)
        if size is not None:  # the groups' parts of the same batches, by number
            batches = (before + np.arange(len(names))) // size
        numbers = None if batches is None else np.atleast_1d(batches)
        own = np.array([self._group(name) for name in names], dtype=object)
        for name in set(own):
            mine = np.flatnonzero(own == name)
            batch = None if numbers is None else numbers[mine]
            self.groups[name].update_answers(confidences[mine], flags[mine], batches=batch)
        # judge every group's part of a batch that the whole stream has finished
        current = str(self.n // size) if size else self.open_batch
        for monitor in self.groups.values():
            if monitor.open_batch not in (None, current):
                monitor.close_batch()

    def close_batch(self) -> None:
        """Judge the open batch of the whole stream and of every group."""
        super().close_batch()
        for monitor in self.groups.values():
            monitor.close_batch()

    def _group(self, name: str) -> str:
        """The group that a name counts in; a new one, if there is room."""
        if name not in self.groups and len(self.groups) >= MAX_GROUPS:
            name = OTHER
        if name not in self.groups:
            rate = group_share(len(self.groups)) * self.false_alarm_rate / 2
            self.groups[name] = Monitor(**self.settings | {"false_alarm_rate": rate, "batch": None})
        return name

    def report(self) -> GroupReport:
        """The report of the whole stream with those of the groups."""
        groups = [{"group": name, **monitor.report().to_dict()} for name, monitor in self.groups.items()]
        groups.sort(key=lambda group: (not group["alarm"], -group["evidence"]))
        return GroupReport(**super().report().to_dict(), alarms=self.alarms, groups=groups)

    def restore(self, state: Any) -> None:
        """Take over what `state` returned."""
        for name in state["groups"]:  # in their order, which decides the shares
            self._group(name)
        super().restore(state)


def group_share(index: int) -> float:
    """The share w of group `index` (from 0) in the groups' half of the false-alarm rate.

    >>> group_share(0), group_share(16)
    (0.03125, 0.0078125)
    """
    block = (index // FIRST_GROUPS + 1).bit_length() - 1  # a block is twice as long as the one before
    return 0.5 / FIRST_GROUPS / 4**block


def stated(values: Any, labels: Any, *, from_logits: bool) -> tuple[Array, Array]:
    """The probability that each row states (n,), and whether it came true (n,).

    It is that of the positive class where there are two, and that of the predicted one where there are more.
    """
    name = "logits" if from_logits else "probabilities"
    if np.ndim(values) == 1:
        values = np.asarray(values)
        values = np.stack([0 * values if from_logits else 1 - values, values], axis=1)
    matrix = check_matrix(values, name)
    check_values(matrix, from_logits=from_logits, name=name)
    if from_logits:
        matrix = softmax(matrix.astype(np.float64, copy=False))
    labels = check_labels(labels, len(matrix), matrix.shape[1], against=name)
    chosen = matrix.argmax(axis=1) if matrix.shape[1] > 2 else np.ones_like(labels)
    return np.take_along_axis(matrix, chosen[:, None], axis=1)[:, 0], chosen == labels


def _texts(values: Any) -> Array:
    return np.array([str(value) for value in np.atleast_1d(np.asarray(values, dtype=object)).tolist()], dtype=object)


def _over_under(confidence: Array, correct: Array, n_bins: int) -> tuple[Array, Array]:
    """Σ_b max(0, C_b − A_b) and Σ_b max(0, A_b − C_b), sums over n rows, for each row of `correct` (draws×n)."""
    index = width_index(confidence, n_bins)
    member = np.eye(n_bins, dtype=np.float32)[index]
    hits = correct.astype(np.float32) @ member  # counts below 2^24 are exact in float32
    sure = np.bincount(index, weights=confidence, minlength=n_bins)
    gap = (sure - hits) / len(index)
    return np.maximum(gap, 0).sum(axis=1), np.maximum(-gap, 0).sum(axis=1)
