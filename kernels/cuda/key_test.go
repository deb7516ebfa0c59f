package cuda

import "testing"

func TestStrip(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"nothing", "", ""},
		{"blank", " \n\t\n", ""},
		{"line comment", "int a; // the user's name\nint b;\n", "int a;\nint b;\n"},
		{"no newline at the end", "int a;", "int a;\n"},
		{"comment on a line of its own", "int a;\n  // why\nint b;\n", "int a;\nint b;\n"},
		{"comment as a space", "int/**/a;\n", "int a;\n"},
		{"comment over lines", "int /* a\n b */ c;\n", "int   c;\n"},
		{"comment that never ends", "int a; /* b", "int a;\n"},
		{"continued comment", "int a; // b \\\nint c;\nint d;\n", "int a;\nint d;\n"},
		{"continued comment, DOS", "int a; // b \\\r\nint c;\r\nint d;\r\n", "int a;\nint d;\n"},
		{"indentation stays", "  int a;  \n", "  int a;\n"},
		{"division", "a = b / c;\n", "a = b / c;\n"},
		{"string", "f(\"a // b /* c */\");  \n", "f(\"a // b /* c */\");\n"},
		{"escaped quote", `f("a\" // b"); // c` + "\n", `f("a\" // b");` + "\n"},
		{"escaped backslash", `f("a\\"); // b` + "\n", `f("a\\");` + "\n"},
		{"blank space in a string", "f(\"a  \" \"  b\");\n", "f(\"a  \" \"  b\");\n"},
		{"characters", `f('"', '\'', '/'); // '` + "\n", `f('"', '\'', '/');` + "\n"},
		{"quotes between digits", "int a = 1'000'000; // it's\nint b;\n", "int a = 1'000'000;\nint b;\n"},
		{"a character after a name", "f(u8'/', L'\"'); // c\n", "f(u8'/', L'\"');\n"},
		{"raw string", "f(R\"x(a \" // b \n\n )\" )x\"); // c\n", "f(R\"x(a \" // b \n\n )\" )x\");\n"},
		{"a lone quote ends with its line", "#error don't\nint a; // b\n", "#error don't\nint a;\n"},
		{"macro", "#define A \\\n  b \\\n\nint c;\n", "#define A \\\n  b \\\n\nint c;\n"},
	} {
		if got := strip(c.in); got != c.want {
			t.Errorf("%s: %q became %q, want %q", c.name, c.in, got, c.want)
		}
		if again := strip(c.want); again != c.want {
			t.Errorf("%s: %q is not stable: %q", c.name, c.want, again)
		}
	}
}

func TestKey(t *testing.T) {
	a := Key("float x; // hidden.0\n")
	if b := Key("float x; // renamed by the user\n\n"); a != b {
		t.Errorf("another comment, another key: %s, %s", a, b)
	}
	if b := Key("float y; // hidden.0\n"); a == b {
		t.Error("another name of a variable, the same key")
	}
	if len(a) != 64 {
		t.Errorf("%s has %d characters, want 64", a, len(a))
	}
}
