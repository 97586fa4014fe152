//! Tests through the crate's public interface.

mod device_threads;
