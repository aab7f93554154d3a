//! Parts with parameters that models share.
