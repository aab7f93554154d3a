//! What can be found out about models.

pub mod papers;
