//! How a command ends when it does not do what was asked.

use std::fmt;

/// A message for the user and the exit code that goes with it.
#[derive(Debug)]
pub struct Failure {
    pub code: i32,
    pub message: String,
}

impl Failure {
    /// The input was wrong; nothing was done.
    pub fn usage(message: impl Into<String>) -> anyhow::Error {
        Failure { code: 2, message: message.into() }.into()
    }

    pub fn with_code(code: i32, message: impl Into<String>) -> anyhow::Error {
        Failure { code, message: message.into() }.into()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}
