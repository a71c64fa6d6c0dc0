-- SPDX-License-Identifier: Apache-2.0
-- Copyright The Sluice Authors

-- Who acted for the principal (RFC 8693); '' when nobody did.
ALTER TABLE audit ADD COLUMN actor TEXT NOT NULL DEFAULT '';
