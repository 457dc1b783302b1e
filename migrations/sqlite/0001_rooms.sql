-- Ids are BLOBs: they are compared as bytes, so that `Room1` and `room1`, or `a` and `a ` are two rooms.
-- Every key begins with (app_code, room_id): the data shards by room.

-- Who owns a room. A take is a compare-and-set to epoch + 1 with a fresh token.
CREATE TABLE IF NOT EXISTS room_owner (
  app_code BLOB NOT NULL,
  room_id BLOB NOT NULL,
  epoch INTEGER NOT NULL,
  lease_token BLOB NOT NULL,
  owner_node_id BLOB NOT NULL,
  incarnation BLOB NOT NULL,
  address BLOB NOT NULL,
  acquired_at_ms INTEGER NOT NULL,
  released_at_ms INTEGER NULL,
  PRIMARY KEY (app_code, room_id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS room_owner_by_node ON room_owner (owner_node_id, released_at_ms);

-- One row for each room that ever committed: where its log ends, and where its last commit began.
CREATE TABLE IF NOT EXISTS room_head (
  app_code BLOB NOT NULL,
  room_id BLOB NOT NULL,
  base_seq INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  state_hash BLOB NOT NULL,
  updated_at_ms INTEGER NOT NULL,
  PRIMARY KEY (app_code, room_id)
) WITHOUT ROWID;

-- The log: 1..n without gap in each room. `events` is a length-prefixed list.
CREATE TABLE IF NOT EXISTS room_command_log (
  app_code BLOB NOT NULL,
  room_id BLOB NOT NULL,
  seq INTEGER NOT NULL,
  command_id BLOB NOT NULL,
  command_hash BLOB NOT NULL,
  result BLOB NOT NULL,
  events BLOB NOT NULL,
  epoch INTEGER NOT NULL,
  lease_token BLOB NOT NULL,
  owner_node_id BLOB NOT NULL,
  committed_at_ms INTEGER NOT NULL,
  PRIMARY KEY (app_code, room_id, seq),
  UNIQUE (app_code, room_id, command_id)
) WITHOUT ROWID;

-- The newest snapshot of a room.
CREATE TABLE IF NOT EXISTS room_snapshot (
  app_code BLOB NOT NULL,
  room_id BLOB NOT NULL,
  seq INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  format INTEGER NOT NULL,
  state_hash BLOB NOT NULL,
  state BLOB NOT NULL,
  written_at_ms INTEGER NOT NULL,
  PRIMARY KEY (app_code, room_id)
) WITHOUT ROWID;

-- A room's life as listings show it.
CREATE TABLE IF NOT EXISTS rooms (
  app_code BLOB NOT NULL,
  room_id BLOB NOT NULL,
  status BLOB NOT NULL,
  created_at_ms INTEGER NOT NULL,
  closed_at_ms INTEGER NULL,
  PRIMARY KEY (app_code, room_id)
) WITHOUT ROWID;

-- Committed events on their way out; the delivered ones leave. (seq, event_index) is the order.
CREATE TABLE IF NOT EXISTS room_outbox (
  app_code BLOB NOT NULL,
  room_id BLOB NOT NULL,
  seq INTEGER NOT NULL,
  event_index INTEGER NOT NULL,
  event_type BLOB NOT NULL,
  envelope BLOB NOT NULL,
  state BLOB NOT NULL,
  worker_id BLOB NULL,
  lock_until_ms INTEGER NULL,
  claim_token BLOB NULL,
  attempts INTEGER NOT NULL DEFAULT 0,
  last_error BLOB NULL,
  created_at_ms INTEGER NOT NULL,
  PRIMARY KEY (app_code, room_id, seq, event_index)
) WITHOUT ROWID;

-- One row for each room with events on their way: the unit that a worker leases. `due_ms` NULL is not claimable;
-- a claim sets it to the lease's end, a retry to the end of the back-off.
CREATE TABLE IF NOT EXISTS outbox_room (
  app_code BLOB NOT NULL,
  room_id BLOB NOT NULL,
  due_ms INTEGER NULL,
  pending INTEGER NOT NULL,
  attempts INTEGER NOT NULL DEFAULT 0,
  lost_claims INTEGER NOT NULL DEFAULT 0,
  lease_token BLOB NULL,
  lease_until_ms INTEGER NULL,
  worker_id BLOB NULL,
  PRIMARY KEY (app_code, room_id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS outbox_room_due ON outbox_room (app_code, due_ms);
