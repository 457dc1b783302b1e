//! SQLite, for one machine.
