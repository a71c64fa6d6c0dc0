-- SPDX-License-Identifier: Apache-2.0
-- Copyright The Sluice Authors

-- Times are milliseconds since the epoch, 0 for none. version counts the
-- changes of a row, from 1.
CREATE TABLE organisations (
    name         TEXT PRIMARY KEY,
    id           TEXT NOT NULL UNIQUE,
    display_name TEXT NOT NULL,
    contact      TEXT NOT NULL,
    version      INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Each organisation has its own records, also of principals of others: those
-- count for nothing.
CREATE TABLE principals (
    organisation TEXT NOT NULL,
    id           TEXT NOT NULL,
    display_name TEXT NOT NULL,
    admin        INTEGER NOT NULL,
    disabled     INTEGER NOT NULL,
    version      INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    PRIMARY KEY (organisation, id)
) STRICT, WITHOUT ROWID;

-- secrets: a JSON list of argon2id hashes with their ids and times.
CREATE TABLE service_accounts (
    client_id    TEXT PRIMARY KEY,
    organisation TEXT NOT NULL,
    display_name TEXT NOT NULL,
    disabled     INTEGER NOT NULL,
    secrets      TEXT NOT NULL,
    version      INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX service_accounts_organisation ON service_accounts (organisation, client_id);

-- What an administrator says of a warehouse; id is the one in warehouses.
-- source: 1 the configuration, 2 the API. storage is JSON without secrets.
CREATE TABLE warehouse_profiles (
    name         TEXT PRIMARY KEY,
    id           TEXT NOT NULL UNIQUE REFERENCES warehouses (id),
    organisation TEXT NOT NULL,
    display_name TEXT NOT NULL,
    storage      TEXT NOT NULL,
    source       INTEGER NOT NULL,
    version      INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX warehouse_profiles_organisation ON warehouse_profiles (organisation, name);

-- revision counts everything that shapes what recipients get: the share,
-- its members, its grants and their recipients.
CREATE TABLE shares (
    name         TEXT PRIMARY KEY,
    id           TEXT NOT NULL UNIQUE,
    organisation TEXT NOT NULL,
    display_name TEXT NOT NULL,
    description  TEXT NOT NULL,
    on_drop      INTEGER NOT NULL,
    revision     INTEGER NOT NULL,
    version      INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX shares_organisation ON shares (organisation, name);

-- kind: 1 table, 2 view, 3 namespace. A table or view is bound to its row and
-- its UUID, a namespace to its path; each goes with what it is bound to.
-- namespace and name are where the object is now. alias is '' for a namespace.
CREATE TABLE share_members (
    id              TEXT PRIMARY KEY,
    share           TEXT NOT NULL REFERENCES shares (id) ON DELETE CASCADE,
    kind            INTEGER NOT NULL,
    warehouse       TEXT NOT NULL,
    namespace       TEXT NOT NULL,
    name            TEXT NOT NULL,
    object          TEXT REFERENCES objects (id) ON DELETE CASCADE,
    whole           TEXT,
    uuid            TEXT NOT NULL,
    alias_namespace TEXT NOT NULL,
    alias           TEXT NOT NULL,
    created_at      INTEGER NOT NULL,
    FOREIGN KEY (warehouse, whole) REFERENCES namespaces (warehouse, path) ON DELETE CASCADE
) STRICT;
CREATE UNIQUE INDEX share_members_shown ON share_members (share, alias_namespace, alias);
CREATE UNIQUE INDEX share_members_object ON share_members (object, share) WHERE object IS NOT NULL;
CREATE UNIQUE INDEX share_members_whole ON share_members (warehouse, whole, share) WHERE whole IS NOT NULL;

-- binding: 1 token, 2 certificate, 3 activation. issuer, claim and value are
-- '' until an activation link has been spent.
CREATE TABLE recipients (
    id           TEXT PRIMARY KEY,
    provider     TEXT NOT NULL,
    name         TEXT NOT NULL,
    display_name TEXT NOT NULL,
    organisation TEXT NOT NULL,
    binding      INTEGER NOT NULL,
    issuer       TEXT NOT NULL,
    claim        TEXT NOT NULL,
    value        TEXT NOT NULL,
    link_expires INTEGER NOT NULL,
    activated_at INTEGER NOT NULL,
    disabled     INTEGER NOT NULL,
    version      INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX recipients_name ON recipients (provider, name);
CREATE INDEX recipients_bound ON recipients (issuer, claim, value);

CREATE TABLE activations (
    id           TEXT PRIMARY KEY,
    sum          BLOB NOT NULL,
    recipient    TEXT NOT NULL REFERENCES recipients (id) ON DELETE CASCADE,
    organisation TEXT NOT NULL,
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER NOT NULL,
    used_issuer  TEXT NOT NULL,
    used_subject TEXT NOT NULL,
    used_at      INTEGER NOT NULL
) STRICT;
CREATE INDEX activations_recipient ON activations (recipient);

-- conditions is JSON.
CREATE TABLE grants (
    id            TEXT PRIMARY KEY,
    share         TEXT NOT NULL REFERENCES shares (id) ON DELETE CASCADE,
    recipient     TEXT NOT NULL REFERENCES recipients (id) ON DELETE CASCADE,
    provider      TEXT NOT NULL,
    comment       TEXT NOT NULL,
    expires_at    INTEGER NOT NULL,
    conditions    TEXT NOT NULL,
    terms         TEXT NOT NULL,
    accepted_by   TEXT NOT NULL,
    accepted_at   INTEGER NOT NULL,
    revoked_at    INTEGER NOT NULL,
    revoke_reason TEXT NOT NULL,
    version       INTEGER NOT NULL,
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL
) STRICT;
CREATE INDEX grants_share ON grants (share, id);
CREATE INDEX grants_recipient ON grants (recipient, id);
CREATE INDEX grants_provider ON grants (provider, id);

CREATE TABLE share_warnings (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    organisation TEXT NOT NULL,
    share        TEXT NOT NULL,
    at           INTEGER NOT NULL,
    reason       TEXT NOT NULL,
    message      TEXT NOT NULL,
    object       TEXT NOT NULL,
    principal    TEXT NOT NULL
) STRICT;
CREATE INDEX share_warnings_organisation ON share_warnings (organisation, id);
CREATE INDEX share_warnings_share ON share_warnings (share, id);

-- layer: 1 platform, 2 provider, 3 recipient. organisation is '' for the first.
-- An owner has one set in each layer.
CREATE TABLE policy_sets (
    layer          INTEGER NOT NULL,
    organisation   TEXT NOT NULL,
    name           TEXT NOT NULL,
    id             TEXT NOT NULL UNIQUE,
    description    TEXT NOT NULL,
    active_version INTEGER NOT NULL,
    newest_version INTEGER NOT NULL,
    version        INTEGER NOT NULL,
    created_at     INTEGER NOT NULL,
    updated_at     INTEGER NOT NULL,
    PRIMARY KEY (layer, organisation, name)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX policy_sets_owner ON policy_sets (layer, organisation);
CREATE INDEX policy_sets_organisation ON policy_sets (organisation, layer, name);

-- files is a JSON list. Versions are never changed or deleted.
CREATE TABLE policy_versions (
    policy_set   TEXT NOT NULL REFERENCES policy_sets (id),
    version      INTEGER NOT NULL,
    comment      TEXT NOT NULL,
    principal    TEXT NOT NULL,
    digest       TEXT NOT NULL,
    files        TEXT NOT NULL,
    policy_count INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (policy_set, version)
) STRICT, WITHOUT ROWID;

CREATE TABLE policy_activations (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    policy_set TEXT NOT NULL REFERENCES policy_sets (id),
    version    INTEGER NOT NULL,
    previous   INTEGER NOT NULL,
    principal  TEXT NOT NULL,
    at         INTEGER NOT NULL,
    rollback   INTEGER NOT NULL,
    -- What the names in the set meant: JSON.
    bindings   TEXT NOT NULL
) STRICT;
CREATE INDEX policy_activations_set ON policy_activations (policy_set, id);

-- Counts the activations of all sets, for caches.
INSERT INTO counters (name, value) VALUES ('policies', 0);
