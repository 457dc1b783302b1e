-- Ids are VARBINARY: they are compared as bytes, so that `Room1` and `room1`, or `a` and `a ` are two rooms.
-- Every key begins with (app_code, room_id): the data shards by room.
-- MySQL commits at each CREATE TABLE: every statement may run again after a run that was cut in the middle.

-- Who owns a room. A take is a compare-and-set to epoch + 1 with a fresh token.
CREATE TABLE IF NOT EXISTS room_owner (
  app_code       VARBINARY(64)   NOT NULL,
  room_id        VARBINARY(128)  NOT NULL,
  epoch          BIGINT UNSIGNED NOT NULL,
  lease_token    BINARY(16)      NOT NULL,
  owner_node_id  VARBINARY(128)  NOT NULL,
  incarnation    BINARY(16)      NOT NULL,
  address        VARBINARY(255)  NOT NULL,
  acquired_at_ms BIGINT          NOT NULL,
  released_at_ms BIGINT          NULL,
  PRIMARY KEY (app_code, room_id),
  KEY room_owner_by_node (owner_node_id, released_at_ms)
) ENGINE = InnoDB;

-- One row for each room that ever committed: where its log ends, and where its last commit began. A commit moves
-- the head only from where it is, so that the log has no gap.
CREATE TABLE IF NOT EXISTS room_head (
  app_code      VARBINARY(64)   NOT NULL,
  room_id       VARBINARY(128)  NOT NULL,
  base_seq      BIGINT UNSIGNED NOT NULL,
  seq           BIGINT UNSIGNED NOT NULL,
  epoch         BIGINT UNSIGNED NOT NULL,
  state_hash    BINARY(32)      NOT NULL,
  updated_at_ms BIGINT          NOT NULL,
  PRIMARY KEY (app_code, room_id)
) ENGINE = InnoDB;

-- The log: 1..n without gap in each room. `events` is a length-prefixed list.
CREATE TABLE IF NOT EXISTS room_command_log (
  app_code        VARBINARY(64)   NOT NULL,
  room_id         VARBINARY(128)  NOT NULL,
  seq             BIGINT UNSIGNED NOT NULL,
  command_id      VARBINARY(128)  NOT NULL,
  command_hash    BINARY(32)      NOT NULL,
  result          MEDIUMBLOB      NOT NULL,
  events          MEDIUMBLOB      NOT NULL,
  epoch           BIGINT UNSIGNED NOT NULL,
  lease_token     BINARY(16)      NOT NULL,
  owner_node_id   VARBINARY(128)  NOT NULL,
  committed_at_ms BIGINT          NOT NULL,
  PRIMARY KEY (app_code, room_id, seq),
  UNIQUE KEY room_command_log_by_id (app_code, room_id, command_id)
) ENGINE = InnoDB;

-- The newest snapshot of a room.
CREATE TABLE IF NOT EXISTS room_snapshot (
  app_code      VARBINARY(64)   NOT NULL,
  room_id       VARBINARY(128)  NOT NULL,
  seq           BIGINT UNSIGNED NOT NULL,
  epoch         BIGINT UNSIGNED NOT NULL,
  format        INT UNSIGNED    NOT NULL,
  state_hash    BINARY(32)      NOT NULL,
  state         LONGBLOB        NOT NULL,
  written_at_ms BIGINT          NOT NULL,
  PRIMARY KEY (app_code, room_id)
) ENGINE = InnoDB;

-- A room's life as listings show it.
CREATE TABLE IF NOT EXISTS rooms (
  app_code      VARBINARY(64)  NOT NULL,
  room_id       VARBINARY(128) NOT NULL,
  status        VARBINARY(16)  NOT NULL,
  created_at_ms BIGINT         NOT NULL,
  closed_at_ms  BIGINT         NULL,
  PRIMARY KEY (app_code, room_id)
) ENGINE = InnoDB;

-- Committed events on their way out; the delivered ones leave. (seq, event_index) is the order.
CREATE TABLE IF NOT EXISTS room_outbox (
  app_code      VARBINARY(64)   NOT NULL,
  room_id       VARBINARY(128)  NOT NULL,
  seq           BIGINT UNSIGNED NOT NULL,
  event_index   INT UNSIGNED    NOT NULL,
  event_type    VARBINARY(64)   NOT NULL,
  envelope      MEDIUMBLOB      NOT NULL,
  state         VARBINARY(16)   NOT NULL,
  worker_id     VARBINARY(160)  NULL,
  lock_until_ms BIGINT          NULL,
  claim_token   BINARY(16)      NULL,
  attempts      INT UNSIGNED    NOT NULL DEFAULT 0,
  last_error    VARBINARY(1024) NULL,
  created_at_ms BIGINT          NOT NULL,
  PRIMARY KEY (app_code, room_id, seq, event_index)
) ENGINE = InnoDB;

-- One row for each room with events on their way: the unit that a worker leases. `due_ms` NULL is not claimable;
-- a claim sets it to the lease's end, a retry to the end of the back-off.
CREATE TABLE IF NOT EXISTS outbox_room (
  app_code       VARBINARY(64)  NOT NULL,
  room_id        VARBINARY(128) NOT NULL,
  due_ms         BIGINT         NULL,
  pending        BIGINT         NOT NULL,
  attempts       INT UNSIGNED   NOT NULL DEFAULT 0,
  lost_claims    INT UNSIGNED   NOT NULL DEFAULT 0,
  lease_token    BINARY(16)     NULL,
  lease_until_ms BIGINT         NULL,
  worker_id      VARBINARY(160) NULL,
  PRIMARY KEY (app_code, room_id),
  KEY outbox_room_due (app_code, due_ms)
) ENGINE = InnoDB;
