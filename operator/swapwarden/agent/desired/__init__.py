"""The state in force, and the pure answer to what a file must hold."""
