"""One false-alarm promise over a whole stream and each of its groups.

Half of the false-alarm rate α belongs to the stream as a whole, half to the groups. Group j, in the order of first
appearance, gets the share w_j, Σ_j w_j ≤ 1, so that the chance of any false alarm at all is at most

    α/2 + Σ_j w_j α/2 ≤ α.

The group of an answer is known before its outcome, so numbering groups as they appear spends nothing twice. The first
16 groups get 1/32 each, the next 32 get 1/128 each, the next 64 get 1/512: no number of groups has to be known ahead.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from calibrant.core.errors import InputError
from calibrant.shipping.monitor import Monitor

STATE_FORMAT = 1
FIRST_GROUPS = 16
MAX_GROUPS = 200
"""Answers of further groups count in the whole stream only."""


class GroupMonitor:
    """Watch calibration on a stream of labelled answers, as a whole and for each group.

    Takes the parameters of `Monitor`; `false_alarm_rate` covers the whole stream and all groups together.

    Examples
    --------
    >>> monitor = GroupMonitor(false_alarm_rate=0.01)
    >>> hospital = np.array(["north", "south"])[np.arange(2000) % 2]
    >>> correct = np.where(hospital == "north", np.arange(2000) % 20 < 18, np.arange(2000) % 10 < 5)
    >>> monitor.update_answers(np.full(2000, 0.9), correct, hospital)
    >>> monitor.alarms
    ['south']
    """

    def __init__(self, **settings: Any) -> None:
        self.settings = Monitor(**settings).settings
        self.reset()

    def reset(self) -> None:
        """Forget everything, groups included."""
        self.total = Monitor(**{**self.settings, "false_alarm_rate": self.settings["false_alarm_rate"] / 2})
        self.groups: dict[str, Monitor] = {}
        self.n_left_out = 0

    @property
    def n(self) -> int:
        """Answers seen."""
        return self.total.n

    @property
    def false_alarm_rate(self) -> float:
        """The promise for the whole stream and all groups together."""
        return self.settings["false_alarm_rate"]

    @property
    def alarm(self) -> bool:
        """Whether the alarm of the whole stream or of any group has ever risen."""
        return self.total.alarm or bool(self.alarms)

    @property
    def alarms(self) -> list[str]:
        """The groups whose alarm has risen."""
        return [name for name, monitor in self.groups.items() if monitor.alarm]

    def update_answers(self, confidence: Any, correct: Any, groups: Any, *, batches: Any = None) -> None:
        """Take confidences, whether each answer was correct, and its group (each of shape (n,)), in order."""
        confidences, flags = np.atleast_1d(np.asarray(confidence)), np.atleast_1d(np.asarray(correct))
        names = np.array([str(group) for group in np.atleast_1d(np.asarray(groups, dtype=object)).tolist()], object)
        if names.shape != confidences.shape:
            raise InputError(f"groups has shape {names.shape}, but confidence has {confidences.shape}: give (n,) both")
        before = self.total.n
        self.total.update_answers(confidences, flags, batches=batches)
        size = self.settings["batch"]
        numbers = batches
        if size is not None:  # the groups' parts of the same batches, by number
            numbers = (before + np.arange(len(names))) // size
        numbers = None if numbers is None else np.atleast_1d(np.asarray(numbers))
        for name in dict.fromkeys(names.tolist()):
            mine = names == name
            monitor = self._group(name)
            if monitor is None:
                self.n_left_out += int(mine.sum())
                continue
            monitor.update_answers(confidences[mine], flags[mine], batches=None if numbers is None else numbers[mine])
        self._close_finished(self.total.n // size if size else None)

    def close_batch(self) -> None:
        """Judge the open batch of the whole stream and of every group."""
        for monitor in (self.total, *self.groups.values()):
            monitor.close_batch()

    def _close_finished(self, number: int | None) -> None:
        """Judge every group's part of a batch that the whole stream has finished."""
        current = self.total.open_batch if number is None else str(number)
        for monitor in self.groups.values():
            if monitor.open_batch is not None and monitor.open_batch != current:
                monitor.close_batch()

    def _group(self, name: str) -> Monitor | None:
        if name not in self.groups:
            if len(self.groups) >= MAX_GROUPS:
                return None
            rate = group_share(len(self.groups)) * self.settings["false_alarm_rate"] / 2
            self.groups[name] = Monitor(**{**self.settings, "false_alarm_rate": rate, "batch": None})
        return self.groups[name]

    def report(self) -> dict[str, Any]:
        """The report of the whole stream, with the list `groups` of the groups' reports, alarms first."""
        groups = [{"group": name, **monitor.report().to_dict()} for name, monitor in self.groups.items()]
        groups.sort(key=lambda group: (not group["alarm"], -group["evidence"]))
        total = self.total.report().to_dict()
        return {**total, "alarm": self.alarm, "alarms": self.alarms, "groups": groups, "n_left_out": self.n_left_out}

    def to_json(self) -> str:
        """The whole state as JSON."""
        return json.dumps(
            {
                "group_format": STATE_FORMAT,
                "false_alarm_rate": self.false_alarm_rate,
                "total": json.loads(self.total.to_json()),
                "groups": {name: json.loads(monitor.to_json()) for name, monitor in self.groups.items()},
                "n_left_out": self.n_left_out,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> GroupMonitor:
        """The monitor that `to_json` described; anything else is refused."""
        try:
            state = json.loads(text)
            if state["group_format"] != STATE_FORMAT or len(state["groups"]) > MAX_GROUPS:
                raise InputError(f"monitor state has format {state['group_format']!r}, but {STATE_FORMAT} is read")
            total = Monitor.from_json(json.dumps(state["total"]))
            monitor = cls(**{**total.settings, "false_alarm_rate": state["false_alarm_rate"]})
            monitor.total, monitor.n_left_out = total, int(state["n_left_out"])
            monitor.groups = {name: Monitor.from_json(json.dumps(kept)) for name, kept in state["groups"].items()}
        except InputError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise InputError(f"this is not the state of a group monitor ({type(error).__name__}: {error})") from error
        return monitor


def group_share(index: int) -> float:
    """The share w of group `index` (from 0) in the groups' half of the false-alarm rate.

    >>> group_share(0), group_share(16)
    (0.03125, 0.0078125)
    """
    block, size, first = 0, FIRST_GROUPS, 0
    while index >= first + size:
        first, block, size = first + size, block + 1, 2 * size
    return 0.5 ** (block + 1) / size
