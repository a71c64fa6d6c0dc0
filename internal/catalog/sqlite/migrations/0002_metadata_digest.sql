-- SPDX-License-Identifier: Apache-2.0
-- Copyright The Sluice Authors

-- SHA-256 of the metadata document that metadata_location held when the row
-- was written; NULL in rows from before.
ALTER TABLE objects ADD COLUMN metadata_digest BLOB;
