"""The tables of the index: how a new database is made, and what a database of an earlier day gets."""

from __future__ import annotations

import sqlite3

from omlx_cache.records import Kind

SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE records (
    id INTEGER PRIMARY KEY, key BLOB NOT NULL, kind INTEGER NOT NULL, namespace BLOB NOT NULL, parent BLOB NOT NULL,
    start INTEGER NOT NULL, size INTEGER NOT NULL, skip INTEGER NOT NULL, tokens BLOB NOT NULL, media BLOB NOT NULL,
    bytes INTEGER NOT NULL, used REAL NOT NULL,
    writer INTEGER NOT NULL  -- process that is still writing it; 0: ready
);
CREATE UNIQUE INDEX by_name ON records (key, kind);
CREATE INDEX by_use ON records (used, start DESC);
CREATE INDEX by_namespace ON records (namespace, used);
CREATE INDEX roots ON records (tokens) WHERE start = 0;
CREATE INDEX unfinished ON records (writer) WHERE writer != 0;
CREATE TABLE totals (bytes INTEGER NOT NULL, records INTEGER NOT NULL);
INSERT INTO totals VALUES (0, 0);
CREATE TRIGGER added AFTER INSERT ON records BEGIN
    UPDATE totals SET bytes = bytes + new.bytes, records = records + 1;
END;
CREATE TRIGGER removed AFTER DELETE ON records BEGIN
    UPDATE totals SET bytes = bytes - old.bytes, records = records - 1;
END;
CREATE TABLE gone (id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE);
CREATE TABLE written (hour INTEGER PRIMARY KEY, bytes INTEGER NOT NULL);
CREATE TABLE models (namespace BLOB PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE sessions (
    name TEXT NOT NULL, namespace BLOB NOT NULL, key BLOB NOT NULL, PRIMARY KEY (name, namespace, key)
);
CREATE INDEX session_keys ON sessions (key);
"""
START_BYTES = 128
"""Of the tokens, as far as they order the pieces behind a parent: whole, each record would cost a page of its own."""
LATER = f"""
DROP INDEX IF EXISTS by_size;
DROP INDEX IF EXISTS by_parent;
CREATE INDEX IF NOT EXISTS by_start ON records (parent, kind, substr(tokens, 1, {START_BYTES}));
CREATE INDEX IF NOT EXISTS by_state ON records (parent, size) WHERE kind = {int(Kind.STATE)};
CREATE TABLE IF NOT EXISTS fingerprints (namespace BLOB PRIMARY KEY, fingerprint TEXT NOT NULL);
"""
"""Changes to databases of the same version; older programs get along with them."""
TABLES = {"records", "totals", "added", "removed", "gone", "written", "models", "sessions"}
"""What must be there, triggers included: a file of the right version may still have been damaged."""


def statements(script: str) -> list[str]:
    """The script's statements; a trigger's inner semicolons do not end it."""
    statements, current = [], ""
    for line in script.splitlines(keepends=True):
        current += line
        if sqlite3.complete_statement(current):
            statements.append(current)
            current = ""
    return statements
