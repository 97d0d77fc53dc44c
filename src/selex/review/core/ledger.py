"""The SQLite file in the run folder that keeps every decision. Rows are only ever added.

A *round* is one set of results and the decisions made on it. The results are kept with the round: when the run is done
again, earlier decisions can still be understood.

Every row carries a digest, that of an event is of the one before it too: a row that was changed, lost or put elsewhere
is noticed, and then nothing is read rather than something else.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
import warnings
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from selex.checksums import Damaged
from selex.errors import InputError, Note
from selex.io import atomic_path, first_line, is_plain_file, last_bytes
from selex.review.core.decisions import Decision
from selex.review.core.timeline import Event, Timeline
from selex.runs.results import Results
from selex.runs.run import Run
from selex.runs.writer import RunWriter

FILE = "review.sqlite"
FORMAT = 3
_BEGUN = "review"  # the step that the run's log has when a ledger was made
_OURS = 0x5E1EC5  # tells our files from other programs' SQLite files
_NAMES_ANOTHER = bytes.fromhex("d9d505f920a163d7")  # the end of such a journal, from SQLite's file format
_WAIT = 5.0  # seconds to wait for another process to end its transaction
_RECOVER = "; copy it, then try `sqlite3 review.sqlite .recover`, or move it elsewhere to start over"
_ADVICE = {
    "locked": "; another program keeps it locked: close that program",
    "readonly": "; if it was moved or replaced, start `selex review` again",
    "malformed": _RECOVER,
    "not a database": _RECOVER,
}
_SIGNATURE = ("application_id", "user_version")
_COUNTS = (
    "SELECT coalesce(max(number), 0) FROM events",
    "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'events'",
    "SELECT count(*) FROM events WHERE round NOT IN (SELECT number FROM rounds)",
)
_TABLES = """
CREATE TABLE run (id TEXT NOT NULL);
CREATE TABLE rounds (number INTEGER PRIMARY KEY, digest TEXT NOT NULL, results BLOB NOT NULL, started REAL NOT NULL,
  sha256 TEXT NOT NULL);
CREATE TABLE events (number INTEGER PRIMARY KEY AUTOINCREMENT, round INTEGER NOT NULL REFERENCES rounds,
  kind TEXT NOT NULL, decision TEXT, time REAL NOT NULL, sha256 TEXT NOT NULL);
CREATE INDEX events_of_round ON events (round, number);
"""


class Ledger:
    """The decisions about a run, in `folder/review.sqlite`; made if it is not there."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        _check_files(self.path)
        run = Run(folder).id
        with self._reported():
            if not self.path.exists():
                _note_if_gone(folder)
                _make(self.path, run)
                RunWriter(folder).log(step=_BEGUN)
            # several threads share the connection, one at a time: `Review` has the lock
            self._db = sqlite3.connect(self.path, timeout=_WAIT, isolation_level=None, check_same_thread=False)
            weakref.finalize(self, self._db.close).atexit = False  # whoever forgets to close it
            _check(self.path, self._db, run)

    @classmethod
    def of(cls, folder: Path) -> Ledger | None:
        """The ledger of a run, if there is one."""
        if os.path.lexists(folder / FILE):
            return cls(folder)
        _note_if_gone(folder)
        return None

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def round(self, results: Results) -> int:
        """The round of these results: the one there is, or a new one."""
        if (found := self.find(results)) is not None:
            return found
        packed = results.pack()  # before others are kept waiting
        with self.writing():
            if (found := self.find(results)) is not None:
                return found
            number = max(self.rounds(), default=0) + 1
            values = (number, results.digest, packed, time.time())
            self._db.execute("INSERT INTO rounds VALUES (?, ?, ?, ?, ?)", (*values, _digest(*values)))
            return number

    def find(self, results: Results) -> int | None:
        """The round of these results, if there is one and nothing was decided in later ones.

        A run that comes to what it was rounds ago, as when all that was set aside is taken back, is a new round
        otherwise: what was decided then has been decided anew since.
        """
        with self._reported():
            found = self._db.execute("SELECT max(number) FROM rounds WHERE digest = ?", (results.digest,)).fetchone()[0]
            last = self._db.execute("SELECT coalesce(max(round), 0) FROM events").fetchone()[0]
        return int(found) if found is not None and found >= last else None

    def rounds(self) -> list[int]:
        """The numbers of all rounds, in order."""
        with self._reported():
            return [number for (number,) in self._db.execute("SELECT number FROM rounds ORDER BY number")]

    def results(self, number: int) -> Results:
        """The results that a round is about."""
        with self._reported():
            row = self._db.execute("SELECT results FROM rounds WHERE number = ?", (number,)).fetchone()
        return Results.unpack(row[0], self.path)

    def events(self, number: int, after: int = 0) -> list[Event]:
        """The events of a round, but for the first ones."""
        query = "SELECT kind, decision, time, sha256 FROM events WHERE round = ? ORDER BY number LIMIT -1 OFFSET ?"
        with self._reported():
            rows = self._db.execute(query, (number, max(after - 1, 0))).fetchall()
        before = rows.pop(0)[-1] if after else ""
        for *values, digest in rows:
            if digest != _digest(before, number, *values):
                raise _damaged(self.path, "a decision is not what it was when it was made")
            before = digest
        return [Event(kind, Decision.from_json(text) if text else None, time) for kind, text, time, _ in rows]

    def replay(self, number: int, results: Results | None = None) -> Timeline:
        """How a round stands: its events, one after the other, on its results; these need not be read if given."""
        timeline = Timeline(self.results(number) if results is None else results)
        for event in self.events(number):
            timeline.play(event)
        return timeline

    def add(self, number: int, event: Event) -> None:
        """One more event, inside `writing`."""
        query = "SELECT sha256 FROM events WHERE round = ? ORDER BY number DESC LIMIT 1"
        last = self._db.execute(query, (number,)).fetchone()
        values = (number, event.kind, event.decision.to_json() if event.decision else None, float(event.time))
        row = (*values, _digest(last[0] if last else "", *values))
        self._db.execute("INSERT INTO events (round, kind, decision, time, sha256) VALUES (?, ?, ?, ?, ?)", row)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A transaction that nobody else can write during: all of it is on the disk at the end, or none."""
        with self._reported():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def changed(self) -> int:
        """A number that is another one when another process has written."""
        with self._reported():
            return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """A failure of the database, reported in one line."""
        try:
            yield
        except sqlite3.Error as error:
            advice = next((advice for words, advice in _ADVICE.items() if words in str(error)), "")
            raise InputError(f"{self.path}: cannot be used ({first_line(error)}){advice}") from None


def _check_files(ledger: Path) -> None:
    """Refuse what SQLite would follow out of the folder: links, and a journal that names another file.

    SQLite deletes the file that a journal of several databases names. Ours is one database, and names none.
    """
    for suffix in ("", "-journal", "-wal", "-shm"):
        path = ledger.with_name(FILE + suffix)
        if os.path.lexists(path) and not is_plain_file(path):
            raise InputError(f"{path}: is not a file of `selex review`, but a link or a folder; remove it")
    journal = ledger.with_name(f"{FILE}-journal")
    if is_plain_file(journal) and last_bytes(journal, 8) == _NAMES_ANOTHER:
        raise InputError(f"{journal}: names another file, which no journal of `selex review` does; remove it")


def _make(path: Path, run: str) -> None:
    """Lay out a new file, which is there once it is whole: an empty one is a damaged one."""
    with (
        atomic_path(path, over=False) as partial,
        closing(sqlite3.connect(partial, isolation_level=None)) as db,
    ):
        db.execute("PRAGMA journal_mode = MEMORY")
        for statement in filter(str.strip, _TABLES.split(";")):
            db.execute(statement)
        db.execute("INSERT INTO run VALUES (?)", (run,))
        db.execute(f"PRAGMA application_id = {_OURS}")
        db.execute(f"PRAGMA user_version = {FORMAT}")


def _check(path: Path, db: sqlite3.Connection, run: str) -> None:
    """Refuse a file that is not ours, of another version, of another run, or damaged."""
    try:
        db.execute("PRAGMA synchronous = EXTRA")  # a decision is on the disk when its transaction ends
        db.execute("PRAGMA trusted_schema = OFF")
        if not path.stat().st_size:
            raise _damaged(path, "it is empty")
        ours, version = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in _SIGNATURE)
        if ours != _OURS:
            raise InputError(f"{path}: is not a file of `selex review`; move it elsewhere")
        if version != FORMAT:
            raise InputError(f"{path}: was written by another version of selex (format {version}, not {FORMAT})")
        _check_whole(path, db)
        if db.execute("SELECT id FROM run").fetchall() != [(run,)]:
            raise InputError(f"{path}: holds decisions about another run; put back this one's, or move it away")
    except BaseException:
        db.close()
        raise


def _check_whole(path: Path, db: sqlite3.Connection) -> None:
    """Refuse a file of which a part was lost or changed."""
    pages, size = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    if path.stat().st_size < pages * size:  # which SQLite does not mind where the rest of a page is not in use
        raise _damaged(path, "it is cut short")
    found = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if found != "ok":
        raise _damaged(path, " ".join(found.split()))
    for *values, digest in db.execute("SELECT number, digest, results, started, sha256 FROM rounds"):
        if digest != _digest(*values):
            raise _damaged(path, "results that decisions are about are not what they were")
    last, noted, strays = (db.execute(query).fetchone()[0] for query in _COUNTS)
    if last != noted or strays:
        raise _damaged(path, "decisions are missing")


def _damaged(path: Path, why: str) -> Damaged:
    return Damaged(f"{path}: is damaged ({why}){_RECOVER}")


def _note_if_gone(folder: Path) -> None:
    """Say so where there was a ledger once: to remove it is how one begins anew, but it may be an accident too."""
    if any(entry.get("step") == _BEGUN for entry in Run(folder).metrics):
        text = f"{folder / FILE}: is missing; all decisions made before are lost with it"
        warnings.warn(text, Note, stacklevel=4)


def _digest(*values: object) -> str:
    """The digest of a row."""
    digest = hashlib.sha256()
    for value in values:
        part = value if isinstance(value, bytes) else repr(value).encode(errors="surrogatepass")
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()
