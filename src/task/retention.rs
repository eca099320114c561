//! How long a task lives, how often to ask for it, when to forget it.
