//! One client call crossing from one dialect to another.
