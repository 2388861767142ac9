"""The times of a schedule: every N minutes, hours, days, weeks or months.

Source: ``azureml.pipeline.core.schedule`` (ScheduleRecurrence, TimeZone).
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from rayjobs.core.errors import UsageError
from rayjobs.spec.model import Model
from rayjobs.spec.problems import problem_of

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
STEPS = {"Minute": timedelta(minutes=1), "Hour": timedelta(hours=1)}
TIME = re.compile(r"^([01]?\d|2[0-3]):([0-5]\d)$")
# Windows time zone names, which Azure ML uses. Source: CLDR, windowsZones.xml.
WINDOWS_ZONES = {
    "UTC": "UTC",
    "GMT Standard Time": "Europe/London",
    "W. Europe Standard Time": "Europe/Berlin",
    "Central Europe Standard Time": "Europe/Budapest",
    "Romance Standard Time": "Europe/Paris",
    "E. Europe Standard Time": "Europe/Chisinau",
    "FLE Standard Time": "Europe/Kiev",
    "Turkey Standard Time": "Europe/Istanbul",
    "Russian Standard Time": "Europe/Moscow",
    "South Africa Standard Time": "Africa/Johannesburg",
    "Egypt Standard Time": "Africa/Cairo",
    "Israel Standard Time": "Asia/Jerusalem",
    "Arabian Standard Time": "Asia/Dubai",
    "Pakistan Standard Time": "Asia/Karachi",
    "India Standard Time": "Asia/Calcutta",
    "SE Asia Standard Time": "Asia/Bangkok",
    "China Standard Time": "Asia/Shanghai",
    "Singapore Standard Time": "Asia/Singapore",
    "Tokyo Standard Time": "Asia/Tokyo",
    "Korea Standard Time": "Asia/Seoul",
    "AUS Eastern Standard Time": "Australia/Sydney",
    "New Zealand Standard Time": "Pacific/Auckland",
    "Hawaiian Standard Time": "Pacific/Honolulu",
    "Alaskan Standard Time": "America/Anchorage",
    "Pacific Standard Time": "America/Los_Angeles",
    "Mountain Standard Time": "America/Denver",
    "Central Standard Time": "America/Chicago",
    "Eastern Standard Time": "America/New_York",
    "Atlantic Standard Time": "America/Halifax",
    "E. South America Standard Time": "America/Sao_Paulo",
    "Argentina Standard Time": "America/Buenos_Aires",
}


class TimeZone:
    """Time zones by Azure ML's names, such as ``TimeZone.PacificStandardTime``."""


for _name in WINDOWS_ZONES:
    setattr(TimeZone, re.sub(r"\W", "", _name), _name)


class Recurrence(Model):
    """A recurring time; local times are those of `time_zone`.

    Attributes:
        frequency: The unit.
        interval: Number of units between two runs.
        time_zone: An IANA or Windows time zone name.
        start_at: The first local time, such as ``2026-11-27T09:30:00``; a time with an offset is
            converted to local time; None: when the schedule was created.
        hours: For days and weeks: the hours; None: the hour of the start.
        minutes: For days and weeks: the minutes of these hours; None: 0, or without `hours` the
            minute of the start.
        week_days: For weeks: the days; None: the day of the start.
        time_of_day: For days and weeks: a single time (``15:30``) instead of hours and minutes.
    """

    frequency: Literal["Minute", "Hour", "Day", "Week", "Month"]
    interval: int = Field(default=1, ge=1, le=10_000)
    time_zone: str = "UTC"  # before `start_at`, whose check needs it
    start_at: datetime | None = None
    hours: tuple[int, ...] | None = None
    minutes: tuple[int, ...] | None = None
    week_days: tuple[Literal[DAYS], ...] | None = None  # type: ignore[valid-type]
    time_of_day: str | None = None

    @field_validator("time_zone")
    @classmethod
    def _known(cls, value: str) -> str:
        try:
            ZoneInfo(WINDOWS_ZONES.get(value, value))
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(
                f"{value!r} is not a time zone; use a name such as Europe/Berlin"
            ) from None
        return value

    @field_validator("start_at", mode="before")
    @classmethod
    def _is_time(cls, value: Any) -> Any:
        if isinstance(value, str):
            try:
                datetime.fromisoformat(value)
            except ValueError:
                raise ValueError(
                    f"{value!r} is not a time; write it as 2026-11-27T09:30:00"
                ) from None
        return value

    @field_validator("start_at")
    @classmethod
    def _local(cls, value: datetime | None, info: ValidationInfo) -> datetime | None:
        name = info.data.get("time_zone")
        if value is None or value.tzinfo is None or name is None:  # None: refused already
            return value
        return value.astimezone(ZoneInfo(WINDOWS_ZONES.get(name, name))).replace(tzinfo=None)

    @model_validator(mode="after")
    def _fits(self) -> Recurrence:
        for name, most in (("hours", 23), ("minutes", 59)):
            for one in getattr(self, name) or ():
                if not 0 <= one <= most:
                    raise ValueError(f"{name} has {one}; use 0 to {most}")
        if self.time_of_day is not None:
            if TIME.match(self.time_of_day) is None:
                raise ValueError(f"time_of_day is {self.time_of_day!r}; write HH:MM, such as 15:30")
            if self.hours or self.minutes:
                raise ValueError("give time_of_day, or hours and minutes")
        is_daily = self.frequency in ("Day", "Week")
        if (self.hours or self.minutes or self.time_of_day) and not is_daily:
            raise ValueError(
                f"hours, minutes and time_of_day are for Day and Week, not for {self.frequency}"
            )
        if self.week_days and self.frequency != "Week":
            raise ValueError(f"week_days are for Week, not for {self.frequency}")
        return self

    @property
    def zone(self) -> ZoneInfo:
        """The time zone."""
        return ZoneInfo(WINDOWS_ZONES.get(self.time_zone, self.time_zone))

    def next_after(self, moment: datetime, *, made_at: datetime) -> datetime:
        """Return the first time after a moment; both in UTC.

        Args:
            moment: Timezone-aware.
            made_at: When the schedule was created, which is the default start.
        """
        start = (self.start_at or made_at.astimezone(self.zone)).replace(tzinfo=self.zone)
        step = STEPS.get(self.frequency)
        if step is not None:
            first = start.astimezone(UTC)
            if first > moment:
                return first
            step *= self.interval
            return first + ((moment - first) // step + 1) * step
        for found in self._days(start, moment):
            in_utc = found.astimezone(UTC)
            if in_utc > moment and in_utc >= start.astimezone(UTC):
                return in_utc
        raise AssertionError("the days of a recurrence never end")

    def _days(self, start: datetime, moment: datetime) -> Iterator[datetime]:
        """Yield the times of days, weeks and months, from shortly before `moment`."""
        near = max(start, moment.astimezone(self.zone)).date()
        first = start.date()
        if self.frequency == "Month":
            count = (near.year - first.year) * 12 + near.month - first.month
            number = max(0, count // self.interval - 1) * self.interval
            while True:
                year, month = divmod(first.year * 12 + first.month - 1 + number, 12)
                day = min(first.day, calendar.monthrange(year, month + 1)[1])
                yield from self._at(date(year, month + 1, day), start)
                number += self.interval
        if self.frequency == "Week":
            first -= timedelta(days=first.weekday())
            days = self.week_days or (DAYS[start.weekday()],)
            offsets = sorted(DAYS.index(one) for one in dict.fromkeys(days))
            length = 7 * self.interval
        else:
            offsets, length = [0], self.interval
        number = max(0, (near - first).days // length - 1)
        while True:
            for offset in offsets:
                yield from self._at(first + timedelta(days=number * length + offset), start)
            number += 1

    def _at(self, day: date, start: datetime) -> Iterator[datetime]:
        if self.time_of_day is not None:
            hour, minute = map(int, self.time_of_day.split(":"))
            moments = [time(hour, minute)]
        elif self.hours or self.minutes:
            hours = sorted(set(self.hours or (start.hour,)))
            moments = [time(h, m) for h in hours for m in sorted(set(self.minutes or (0,)))]
        else:
            moments = [start.time()]
        for one in moments:
            yield datetime.combine(day, one, tzinfo=self.zone)

    @property
    def text(self) -> str:
        """The recurrence in a few words."""
        unit = self.frequency.lower()
        found = f"every {unit}" if self.interval == 1 else f"every {self.interval} {unit}s"
        if self.week_days:
            found += f" on {', '.join(self.week_days)}"
        if self.time_of_day:
            found += f" at {self.time_of_day}"
        elif self.hours or self.minutes:
            hours = ", ".join(f"{one:02}" for one in self.hours or ()) or "the start's hour"
            found += f" at {hours}:{', '.join(f'{one:02}' for one in self.minutes or (0,))}"
        return found if self.time_zone == "UTC" else f"{found} ({self.time_zone})"


def recurrence_of(values: Mapping[str, Any]) -> Recurrence:
    """Return the recurrence for stored or given values.

    Raises:
        UsageError: they do not describe a recurrence.
    """
    try:
        return Recurrence.model_validate(dict(values))
    except ValidationError as error:
        problems = [str(problem_of(one)) for one in error.errors(include_url=False)]
        raise UsageError(f"the recurrence is wrong: {'; '.join(problems)}") from None


class ScheduleRecurrence:
    """The times of a schedule, with Azure ML's arguments.

    Args:
        frequency: ``Minute``, ``Hour``, ``Day``, ``Week`` or ``Month``.
        interval: Number of units between two runs.
        start_time: The first time: a datetime, or a string such as ``2026-11-27T09:30:00``. A time
            with an offset is converted to `time_zone`.
        time_zone: Time zone of the start, hours and minutes: a `TimeZone`, or an IANA name.
        hours: For Day and Week: a list of hours.
        minutes: For Day and Week: a list of minutes.
        week_days: For Week: a list of days, such as ``Monday``.
        time_of_day: For Day and Week: a single time, such as ``15:30``.

    Raises:
        UsageError: an argument is wrong.
    """

    def __init__(
        self,
        frequency: str,
        interval: int,
        start_time: Any = None,
        time_zone: str | None = None,
        hours: Sequence[int] | None = None,
        minutes: Sequence[int] | None = None,
        week_days: Sequence[str] | None = None,
        time_of_day: str | None = None,
    ) -> None:
        if start_time is not None and time_zone is None and not isinstance(start_time, datetime):
            raise UsageError("start_time needs a time_zone, such as TimeZone.UTC")
        self.frequency = frequency
        self.interval = interval
        self.start_time = start_time
        self.time_zone = time_zone or "UTC"
        self.hours = None if hours is None else list(hours)
        self.minutes = None if minutes is None else list(minutes)
        self.week_days = None if week_days is None else list(week_days)
        self.time_of_day = time_of_day
        self.checked = recurrence_of(
            {
                "frequency": frequency,
                "interval": interval,
                "start_at": start_time,
                "time_zone": self.time_zone,
                "hours": hours,
                "minutes": minutes,
                "week_days": week_days,
                "time_of_day": time_of_day,
            }
        )

    def __repr__(self) -> str:
        """Return it in a few words."""
        return f"ScheduleRecurrence({self.checked.text})"

    def validate(self) -> None:
        """Do nothing: the constructor checks the arguments."""
