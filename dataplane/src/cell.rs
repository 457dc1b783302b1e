//! The executor of one room: mailbox, decisions, commits, recovery.
