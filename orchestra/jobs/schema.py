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
)
