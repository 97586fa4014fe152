//! The front end of descriptor blocks against its specification (`wire::block`), against malicious hosts,
//! and, as a model, against every interleaving of a small ring.

mod exchange;
mod hostile;
mod ring;
