//! Where clients come in.
