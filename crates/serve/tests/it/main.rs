//! Tests through the crate's public interface.

mod device_power;
mod device_threads;
mod hosts;
mod idle;
