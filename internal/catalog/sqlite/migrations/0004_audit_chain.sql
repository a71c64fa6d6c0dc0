-- SPDX-License-Identifier: Apache-2.0
-- Copyright The Sluice Authors

-- The rest of an audit record. kind 1 is a change. policies is a JSON list, or
-- '' for none.
ALTER TABLE audit ADD COLUMN kind INTEGER NOT NULL DEFAULT 1;
ALTER TABLE audit ADD COLUMN address TEXT NOT NULL DEFAULT '';
ALTER TABLE audit ADD COLUMN status INTEGER NOT NULL DEFAULT 0;
ALTER TABLE audit ADD COLUMN decision INTEGER NOT NULL DEFAULT 0;
ALTER TABLE audit ADD COLUMN policies TEXT NOT NULL DEFAULT '';

-- A row's place in its warehouse's chain, given after its transaction has
-- committed (docs/decisions/008).
ALTER TABLE audit ADD COLUMN seq INTEGER;
ALTER TABLE audit ADD COLUMN hash BLOB;
CREATE UNIQUE INDEX audit_seq ON audit (warehouse, seq) WHERE seq IS NOT NULL;
CREATE INDEX audit_fresh ON audit (warehouse, id) WHERE seq IS NULL;

-- The end of each warehouse's chain, and its last checkpoint.
CREATE TABLE audit_partitions (
    warehouse     TEXT NOT NULL PRIMARY KEY,
    seq           INTEGER NOT NULL,
    hash          BLOB NOT NULL,
    checkpoint    INTEGER NOT NULL,
    checkpoint_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- line is the whole signed checkpoint.
CREATE TABLE audit_checkpoints (
    warehouse TEXT NOT NULL,
    seq       INTEGER NOT NULL,
    at        INTEGER NOT NULL,
    line      TEXT NOT NULL,
    PRIMARY KEY (warehouse, seq)
) STRICT, WITHOUT ROWID;

-- How far each export has come, and until when a worker has it.
CREATE TABLE audit_cursors (
    warehouse  TEXT NOT NULL,
    name       TEXT NOT NULL,
    seq        INTEGER NOT NULL,
    held_until INTEGER NOT NULL,
    PRIMARY KEY (warehouse, name)
) STRICT, WITHOUT ROWID;
INSERT INTO audit_partitions (warehouse, seq, hash, checkpoint, checkpoint_at) SELECT id, 0, zeroblob(32), 0, 0 FROM warehouses;
