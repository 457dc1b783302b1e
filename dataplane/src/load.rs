//! The client that drives rooms like real users and keeps a ledger of what was acknowledged.
