//! The front end of descriptor blocks against its own documentation (`wire::block`), against hosts that do
//! not keep to it, and, as a model, against every interleaving of a small ring.

mod exchange;
mod hostile;
mod ring;
