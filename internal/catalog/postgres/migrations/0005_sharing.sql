-- SPDX-License-Identifier: Apache-2.0
-- Copyright The Sluice Authors

-- Times are milliseconds since the epoch, 0 for none. version counts the
-- changes of a row, from 1.
CREATE TABLE organisations (
    name         TEXT COLLATE "C" PRIMARY KEY,
    id           UUID NOT NULL UNIQUE,
    display_name TEXT COLLATE "C" NOT NULL,
    contact      TEXT COLLATE "C" NOT NULL,
    version      BIGINT NOT NULL,
    created_at   BIGINT NOT NULL,
    updated_at   BIGINT NOT NULL
);

-- Each organisation has its own records, also of principals of others: those
-- count for nothing.
CREATE TABLE principals (
    organisation TEXT COLLATE "C" NOT NULL,
    id           TEXT COLLATE "C" NOT NULL,
    display_name TEXT COLLATE "C" NOT NULL,
    admin        BOOLEAN NOT NULL,
    disabled     BOOLEAN NOT NULL,
    version      BIGINT NOT NULL,
    created_at   BIGINT NOT NULL,
    updated_at   BIGINT NOT NULL,
    PRIMARY KEY (organisation, id)
);

-- secrets: a JSON list of argon2id hashes with their ids and times.
CREATE TABLE service_accounts (
    client_id    TEXT COLLATE "C" PRIMARY KEY,
    organisation TEXT COLLATE "C" NOT NULL,
    display_name TEXT COLLATE "C" NOT NULL,
    disabled     BOOLEAN NOT NULL,
    secrets      TEXT NOT NULL,
    version      BIGINT NOT NULL,
    created_at   BIGINT NOT NULL,
    updated_at   BIGINT NOT NULL
);
CREATE INDEX service_accounts_organisation ON service_accounts (organisation, client_id);

-- What an administrator says of a warehouse; id is the one in warehouses.
-- source: 1 the configuration, 2 the API. storage is JSON without secrets.
CREATE TABLE warehouse_profiles (
    name         TEXT COLLATE "C" PRIMARY KEY,
    id           UUID NOT NULL UNIQUE REFERENCES warehouses (id),
    organisation TEXT COLLATE "C" NOT NULL,
    display_name TEXT COLLATE "C" NOT NULL,
    storage      TEXT NOT NULL,
    source       BIGINT NOT NULL,
    version      BIGINT NOT NULL,
    created_at   BIGINT NOT NULL,
    updated_at   BIGINT NOT NULL
);
CREATE INDEX warehouse_profiles_organisation ON warehouse_profiles (organisation, name);

-- revision counts everything that shapes what recipients get: the share,
-- its members, its grants and their recipients.
CREATE TABLE shares (
    name         TEXT COLLATE "C" PRIMARY KEY,
    id           UUID NOT NULL UNIQUE,
    organisation TEXT COLLATE "C" NOT NULL,
    display_name TEXT COLLATE "C" NOT NULL,
    description  TEXT COLLATE "C" NOT NULL,
    on_drop      BIGINT NOT NULL,
    revision     BIGINT NOT NULL,
    version      BIGINT NOT NULL,
    created_at   BIGINT NOT NULL,
    updated_at   BIGINT NOT NULL
);
CREATE INDEX shares_organisation ON shares (organisation, name);

-- kind: 1 table, 2 view, 3 namespace. A table or view is bound to its row and
-- its UUID, a namespace to its path; each goes with what it is bound to.
-- namespace and name are where the object is now. alias is '' for a namespace.
CREATE TABLE share_members (
    id              UUID PRIMARY KEY,
    share           UUID NOT NULL REFERENCES shares (id) ON DELETE CASCADE,
    kind            BIGINT NOT NULL,
    warehouse       UUID NOT NULL,
    namespace       TEXT COLLATE "C" NOT NULL,
    name            TEXT COLLATE "C" NOT NULL,
    object          UUID REFERENCES objects (id) ON DELETE CASCADE,
    whole           TEXT COLLATE "C",
    uuid            UUID NOT NULL,
    alias_namespace TEXT COLLATE "C" NOT NULL,
    alias           TEXT COLLATE "C" NOT NULL,
    created_at      BIGINT NOT NULL,
    FOREIGN KEY (warehouse, whole) REFERENCES namespaces (warehouse, path) ON DELETE CASCADE
);
CREATE UNIQUE INDEX share_members_shown ON share_members (share, alias_namespace, alias);
CREATE UNIQUE INDEX share_members_object ON share_members (object, share) WHERE object IS NOT NULL;
CREATE UNIQUE INDEX share_members_whole ON share_members (warehouse, whole, share) WHERE whole IS NOT NULL;

-- binding: 1 token, 2 certificate, 3 activation. issuer, claim and value are
-- '' until an activation link has been spent.
CREATE TABLE recipients (
    id           UUID PRIMARY KEY,
    provider     TEXT COLLATE "C" NOT NULL,
    name         TEXT COLLATE "C" NOT NULL,
    display_name TEXT COLLATE "C" NOT NULL,
    organisation TEXT COLLATE "C" NOT NULL,
    binding      BIGINT NOT NULL,
    issuer       TEXT COLLATE "C" NOT NULL,
    claim        TEXT COLLATE "C" NOT NULL,
    value        TEXT COLLATE "C" NOT NULL,
    link_expires BIGINT NOT NULL,
    activated_at BIGINT NOT NULL,
    disabled     BOOLEAN NOT NULL,
    version      BIGINT NOT NULL,
    created_at   BIGINT NOT NULL,
    updated_at   BIGINT NOT NULL
);
CREATE UNIQUE INDEX recipients_name ON recipients (provider, name);
CREATE INDEX recipients_bound ON recipients (issuer, claim, value);

CREATE TABLE activations (
    id           TEXT COLLATE "C" PRIMARY KEY,
    sum          BYTEA NOT NULL,
    recipient    UUID NOT NULL REFERENCES recipients (id) ON DELETE CASCADE,
    organisation TEXT COLLATE "C" NOT NULL,
    created_at   BIGINT NOT NULL,
    expires_at   BIGINT NOT NULL,
    used_issuer  TEXT COLLATE "C" NOT NULL,
    used_subject TEXT COLLATE "C" NOT NULL,
    used_at      BIGINT NOT NULL
);
CREATE INDEX activations_recipient ON activations (recipient);

-- conditions is JSON.
CREATE TABLE grants (
    id            UUID PRIMARY KEY,
    share         UUID NOT NULL REFERENCES shares (id) ON DELETE CASCADE,
    recipient     UUID NOT NULL REFERENCES recipients (id) ON DELETE CASCADE,
    provider      TEXT COLLATE "C" NOT NULL,
    comment       TEXT COLLATE "C" NOT NULL,
    expires_at    BIGINT NOT NULL,
    conditions    TEXT NOT NULL,
    terms         TEXT NOT NULL,
    accepted_by   TEXT COLLATE "C" NOT NULL,
    accepted_at   BIGINT NOT NULL,
    revoked_at    BIGINT NOT NULL,
    revoke_reason TEXT COLLATE "C" NOT NULL,
    version       BIGINT NOT NULL,
    created_at    BIGINT NOT NULL,
    updated_at    BIGINT NOT NULL
);
CREATE INDEX grants_share ON grants (share, id);
CREATE INDEX grants_recipient ON grants (recipient, id);
CREATE INDEX grants_provider ON grants (provider, id);

CREATE TABLE share_warnings (
    id           BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    organisation TEXT COLLATE "C" NOT NULL,
    share        UUID NOT NULL,
    at           BIGINT NOT NULL,
    reason       TEXT COLLATE "C" NOT NULL,
    message      TEXT COLLATE "C" NOT NULL,
    object       TEXT COLLATE "C" NOT NULL,
    principal    TEXT COLLATE "C" NOT NULL
);
CREATE INDEX share_warnings_organisation ON share_warnings (organisation, id);
CREATE INDEX share_warnings_share ON share_warnings (share, id);

-- layer: 1 platform, 2 provider, 3 recipient. organisation is '' for the first.
-- An owner has one set in each layer.
CREATE TABLE policy_sets (
    layer          BIGINT NOT NULL,
    organisation   TEXT COLLATE "C" NOT NULL,
    name           TEXT COLLATE "C" NOT NULL,
    id             UUID NOT NULL UNIQUE,
    description    TEXT COLLATE "C" NOT NULL,
    active_version BIGINT NOT NULL,
    newest_version BIGINT NOT NULL,
    version        BIGINT NOT NULL,
    created_at     BIGINT NOT NULL,
    updated_at     BIGINT NOT NULL,
    PRIMARY KEY (layer, organisation, name)
);
CREATE UNIQUE INDEX policy_sets_owner ON policy_sets (layer, organisation);
CREATE INDEX policy_sets_organisation ON policy_sets (organisation, layer, name);

-- files is a JSON list. Versions are never changed or deleted.
CREATE TABLE policy_versions (
    policy_set   UUID NOT NULL REFERENCES policy_sets (id),
    version      BIGINT NOT NULL,
    comment      TEXT COLLATE "C" NOT NULL,
    principal    TEXT COLLATE "C" NOT NULL,
    digest       TEXT COLLATE "C" NOT NULL,
    files        TEXT NOT NULL,
    policy_count BIGINT NOT NULL,
    created_at   BIGINT NOT NULL,
    PRIMARY KEY (policy_set, version)
);

CREATE TABLE policy_activations (
    id         BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    policy_set UUID NOT NULL REFERENCES policy_sets (id),
    version    BIGINT NOT NULL,
    previous   BIGINT NOT NULL,
    principal  TEXT COLLATE "C" NOT NULL,
    at         BIGINT NOT NULL,
    rollback   BOOLEAN NOT NULL,
    -- What the names in the set meant: JSON.
    bindings   TEXT COLLATE "C" NOT NULL
);
CREATE INDEX policy_activations_set ON policy_activations (policy_set, id);

-- Counts the activations of all sets, for caches.
INSERT INTO counters (name, value) VALUES ('policies', 0);
