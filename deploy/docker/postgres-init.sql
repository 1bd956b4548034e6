-- Run once, when the database is made: the extensions that Hindsight stores and searches with.
CREATE EXTENSION IF NOT EXISTS vector;
CREATE EXTENSION IF NOT EXISTS pg_trgm;
