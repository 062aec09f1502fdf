"""How long workers live, and how large a chunk should be for it. Plain numbers in and out; imports no other gridml
package."""
