//! Delivery of committed events: at least once, in order per room.
