fn main() {
    met::main();
}
