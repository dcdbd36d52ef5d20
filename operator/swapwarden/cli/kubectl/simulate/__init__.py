"""`kubectl swap simulate`: what profiles would change before they are applied."""
