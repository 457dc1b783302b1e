//! Opens a store by its URL.
