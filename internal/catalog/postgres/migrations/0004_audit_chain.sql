-- SPDX-License-Identifier: Apache-2.0
-- Copyright The Sluice Authors

-- The rest of an audit record. kind 1 is a change. policies is a JSON list, or
-- '' for none.
ALTER TABLE audit ADD COLUMN kind BIGINT NOT NULL DEFAULT 1;
ALTER TABLE audit ADD COLUMN address TEXT NOT NULL DEFAULT '';
ALTER TABLE audit ADD COLUMN status BIGINT NOT NULL DEFAULT 0;
ALTER TABLE audit ADD COLUMN decision BIGINT NOT NULL DEFAULT 0;
ALTER TABLE audit ADD COLUMN policies TEXT NOT NULL DEFAULT '';

-- A row's place in its warehouse's chain, given after its transaction has
-- committed (docs/decisions/008).
ALTER TABLE audit ADD COLUMN seq BIGINT;
ALTER TABLE audit ADD COLUMN hash BYTEA;
CREATE UNIQUE INDEX audit_seq ON audit (warehouse, seq) WHERE seq IS NOT NULL;
CREATE INDEX audit_fresh ON audit (warehouse, id) WHERE seq IS NULL;

-- The end of each warehouse's chain, and its last checkpoint.
CREATE TABLE audit_partitions (
    warehouse     UUID PRIMARY KEY,
    seq           BIGINT NOT NULL,
    hash          BYTEA NOT NULL,
    checkpoint    BIGINT NOT NULL,
    checkpoint_at BIGINT NOT NULL
);

-- line is the whole signed checkpoint.
CREATE TABLE audit_checkpoints (
    warehouse UUID NOT NULL,
    seq       BIGINT NOT NULL,
    at        BIGINT NOT NULL,
    line      TEXT NOT NULL,
    PRIMARY KEY (warehouse, seq)
);

-- How far each export has come, and until when a worker has it.
CREATE TABLE audit_cursors (
    warehouse  UUID NOT NULL,
    name       TEXT COLLATE "C" NOT NULL,
    seq        BIGINT NOT NULL,
    held_until BIGINT NOT NULL,
    PRIMARY KEY (warehouse, name)
);
INSERT INTO audit_partitions (warehouse, seq, hash, checkpoint, checkpoint_at) SELECT id, 0, decode(repeat('00', 32), 'hex'), 0, 0 FROM warehouses;
