"""Makes lines of the ledger that have failed pending again, and takes them out of its counts."""

from __future__ import annotations

import sqlite3

__all__ = ["FAILED_ANEW", "undo_failures"]

FAILED_ANEW = (
    "job = :job AND state = 'failed' AND error_code <> 'invalid_line' AND body IS NOT NULL "
    # a batch that is not over may be read again, and would bring the same failure without anybody asking
    "AND ifnull(outlet, 0) NOT IN "
    "(SELECT id FROM batches WHERE batches.job = :job AND batches.state NOT IN ('ended', 'abandoned'))"
)
"""Which lines of a ``:job`` can be asked again: those that could be asked at all."""

_SUMS = "count(*), total(input_tokens), total(output_tokens), total(usd)"


def undo_failures(db: sqlite3.Connection, job: int) -> int:
    """Make the failed lines pending again that can be asked again. Returns how many.

    What is known of how they ended is forgotten, and the lines that stay ended close up in their order.
    """
    where = {"job": job}
    db.execute("DROP TABLE IF EXISTS temp.anew")
    db.execute(
        f"CREATE TEMP TABLE anew AS SELECT number, input_tokens, output_tokens, usd, route, via, ended "
        f"FROM lines WHERE {FAILED_ANEW}",
        where,
    )
    count, input_tokens, output_tokens, usd, first = db.execute(
        f"SELECT {_SUMS}, min(ended) FROM temp.anew"
    ).fetchone()
    if count:
        tallies = db.execute(
            f"SELECT ifnull(route, ''), via, {_SUMS} FROM temp.anew WHERE via IS NOT NULL GROUP BY 1, 2"
        )
        for route, via, lines, *spent in tallies.fetchall():
            db.execute(
                "UPDATE outlets SET lines = lines - ?3, failed = failed - ?3, input_tokens = input_tokens - ?4, "
                "output_tokens = output_tokens - ?5, usd = max(0.0, usd - ?6) "
                "WHERE job = ?7 AND route = ?1 AND via = ?2",
                (route, via, lines, int(spent[0]), int(spent[1]), spent[2], job),
            )
        db.execute("DELETE FROM outlets WHERE job = :job AND lines = 0", where)
        db.execute(
            "UPDATE jobs SET failed = failed - ?2, input_tokens = input_tokens - ?3, "
            "output_tokens = output_tokens - ?4, usd = max(0.0, usd - ?5), stopped = NULL, "
            "state = iif(state = 'ended', 'open', state) WHERE id = ?1",
            (job, count, int(input_tokens), int(output_tokens), usd),
        )
        db.execute(
            "UPDATE lines SET state = 'pending', outlet = NULL, attempts = 0, ended = NULL, status_code = NULL, "
            "request_id = NULL, response = NULL, error_code = NULL, error_message = NULL, input_tokens = 0, "
            "output_tokens = 0, route = NULL, via = NULL, usd = NULL "
            "WHERE job = :job AND number IN (SELECT number FROM temp.anew)",
            where,
        )
        # by way of negative places, since no two lines may share one at any moment
        db.execute(
            "UPDATE lines SET ended = -place.at FROM (SELECT rowid AS row, row_number() OVER (ORDER BY ended) + "
            "?2 - 1 AS at FROM lines WHERE job = ?1 AND ended > ?2) AS place WHERE lines.rowid = place.row",
            (job, first),
        )
        db.execute("UPDATE lines SET ended = -ended WHERE job = :job AND ended < 0", where)
    db.execute("DROP TABLE temp.anew")
    return int(count)
