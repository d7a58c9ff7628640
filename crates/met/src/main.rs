#[allow(dead_code)]
mod config;
#[allow(dead_code)]
mod view;

fn main() {}
