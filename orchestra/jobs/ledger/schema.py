"""The ledger's tables. A change is a new entry at the end of `MIGRATIONS`; entries never change."""

from __future__ import annotations

__all__ = ["APPLICATION_ID", "MIGRATIONS"]

APPLICATION_ID = 0x4F726368
"""Marks the file as ours ("Orch")."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE jobs (
            id INTEGER PRIMARY KEY,
            name TEXT NOT NULL UNIQUE,
            created REAL NOT NULL,
            model TEXT,
            deadline REAL,
            source BLOB,
            state TEXT NOT NULL DEFAULT 'loading' CHECK (state IN ('loading', 'open', 'ended')),
            stopped TEXT,
            -- counted in the transaction that changes the lines: counting a million of them takes too long
            total INTEGER NOT NULL DEFAULT 0,
            done INTEGER NOT NULL DEFAULT 0,
            failed INTEGER NOT NULL DEFAULT 0,
            input_tokens INTEGER NOT NULL DEFAULT 0,
            output_tokens INTEGER NOT NULL DEFAULT 0
        )
        """,
        """
        CREATE TABLE lines (
            job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
            number INTEGER NOT NULL,
            custom_id TEXT NOT NULL,
            digest BLOB NOT NULL,
            path TEXT,
            body BLOB,
            state TEXT NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'done', 'failed')),
            attempts INTEGER NOT NULL DEFAULT 0,
            ended INTEGER CHECK ((ended IS NULL) = (state = 'pending')),
            status_code INTEGER,
            request_id TEXT,
            response BLOB,
            error_code TEXT CHECK ((error_code IS NULL) = (state <> 'failed')),
            error_message TEXT,
            input_tokens INTEGER NOT NULL DEFAULT 0,
            output_tokens INTEGER NOT NULL DEFAULT 0,
            route TEXT,
            PRIMARY KEY (job, number),
            UNIQUE (job, custom_id)
        )
        """,
        "CREATE INDEX lines_pending ON lines (job, number) WHERE state = 'pending'",
        "CREATE UNIQUE INDEX lines_ended ON lines (job, ended) WHERE ended IS NOT NULL",
    ),
    (
        "ALTER TABLE jobs ADD COLUMN tag TEXT",
        """
        ALTER TABLE jobs ADD COLUMN kind TEXT NOT NULL DEFAULT 'submitted' CHECK (kind IN ('submitted', 'awaited'))
        """,
        "ALTER TABLE jobs ADD COLUMN usd REAL NOT NULL DEFAULT 0",
        "ALTER TABLE jobs ADD COLUMN unpriced INTEGER NOT NULL DEFAULT 0",
        # how many lines its input was found to have, where that was counted before they were taken in
        "ALTER TABLE jobs ADD COLUMN expected INTEGER NOT NULL DEFAULT 0",
        # the highest number that an awaited line ever had: a withdrawn one's must not come again
        "ALTER TABLE jobs ADD COLUMN last_awaited INTEGER NOT NULL DEFAULT 0",
        # what earlier versions sent went by itself, and nobody noted what it cost
        "UPDATE jobs SET tag = lower(hex(randomblob(6))), unpriced = done",
        # NULL: nobody has decided yet; 0: sent by itself; else the batch in which it rides
        "ALTER TABLE lines ADD COLUMN outlet INTEGER",
        "ALTER TABLE lines ADD COLUMN via TEXT",
        "ALTER TABLE lines ADD COLUMN usd REAL",
        # of awaited lines only: which asking of the same request it is, and when its answer was handed over
        "ALTER TABLE lines ADD COLUMN nth INTEGER",
        "ALTER TABLE lines ADD COLUMN handed REAL",
        "UPDATE lines SET via = 'sync' WHERE route IS NOT NULL",
        "DROP INDEX lines_pending",
        "CREATE INDEX lines_waiting ON lines (job, outlet, number) WHERE state = 'pending'",
        "CREATE UNIQUE INDEX lines_awaited ON lines (job, digest, nth) WHERE nth IS NOT NULL",
        "CREATE INDEX lines_unhanded ON lines (job, digest, nth) WHERE nth IS NOT NULL AND handed IS NULL",
        """
        CREATE TABLE batches (
            id INTEGER PRIMARY KEY,
            job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
            key TEXT NOT NULL UNIQUE,
            provider TEXT NOT NULL,
            account TEXT NOT NULL,
            route TEXT NOT NULL,
            model TEXT NOT NULL,
            path TEXT NOT NULL,
            headers BLOB NOT NULL,
            window REAL NOT NULL,
            state TEXT NOT NULL DEFAULT 'open' CHECK (
                state IN ('open', 'sealed', 'uploaded', 'creating', 'submitted', 'ended', 'abandoned')
            ),
            opened REAL NOT NULL,
            creating_at REAL,
            submitted_at REAL,
            ended_at REAL CHECK ((ended_at IS NOT NULL) = (state IN ('ended', 'abandoned'))),
            file_id TEXT,
            batch_id TEXT CHECK (batch_id IS NOT NULL OR state NOT IN ('submitted', 'ended')),
            status TEXT,
            expires REAL,
            lines INTEGER NOT NULL DEFAULT 0,
            bytes INTEGER NOT NULL DEFAULT 0,
            tokens INTEGER NOT NULL DEFAULT 0,
            -- of its lines those that still have no end, and those that left it without one: counted as above
            riding INTEGER NOT NULL DEFAULT 0,
            released INTEGER NOT NULL DEFAULT 0,
            finished INTEGER,
            note TEXT,
            -- the base URL of its provider's account
            origin TEXT
        )
        """,
        "CREATE INDEX batches_job ON batches (job)",
        # what each way of answering did, counted like the jobs' own counts
        """
        CREATE TABLE outlets (
            job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
            route TEXT NOT NULL,
            via TEXT NOT NULL,
            lines INTEGER NOT NULL DEFAULT 0,
            failed INTEGER NOT NULL DEFAULT 0,
            input_tokens INTEGER NOT NULL DEFAULT 0,
            output_tokens INTEGER NOT NULL DEFAULT 0,
            usd REAL NOT NULL DEFAULT 0,
            unpriced INTEGER NOT NULL DEFAULT 0,
            PRIMARY KEY (job, route, via)
        ) WITHOUT ROWID
        """,
        """
        INSERT INTO outlets (job, route, via, lines, failed, input_tokens, output_tokens, unpriced)
        SELECT job, route, via, count(*), sum(state = 'failed'), sum(input_tokens), sum(output_tokens),
            sum(state = 'done')
        FROM lines WHERE via IS NOT NULL GROUP BY job, route, via
        """,
        "CREATE TABLE durations (outlet TEXT NOT NULL, seconds REAL NOT NULL, at REAL NOT NULL)",
        "CREATE INDEX durations_outlet ON durations (outlet, at)",
    ),
)
