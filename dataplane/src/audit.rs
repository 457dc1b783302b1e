//! The offline proof of the promises, from database, ledger and sink.
