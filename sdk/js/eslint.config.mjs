import js from "@eslint/js";
import tseslint from "typescript-eslint";

export default tseslint.config(
	{ ignores: ["dist", ".test", "node_modules", "**/vendor/"] },
	{ files: ["**/*.ts"], extends: [js.configs.recommended, ...tseslint.configs.recommended], rules: { "@typescript-eslint/no-unused-vars": ["error", { argsIgnorePattern: "^_", varsIgnorePattern: "^_" }] } },
	{ files: ["test/types.ts"], rules: { "@typescript-eslint/no-unused-vars": "off" } },
	// The demo's page, from the root of the project.
	{ files: ["cmd/**/*.js"], extends: [js.configs.recommended], languageOptions: { globals: Object.fromEntries("document window performance fetch console setTimeout setInterval requestAnimationFrame ResizeObserver AbortController".split(" ").map((name) => [name, "readonly"])) }, rules: { "no-shadow": "error", "no-undef": "error", eqeqeq: "error" } },
	// The console's.
	{ files: ["ops/**/*.js"], extends: [js.configs.recommended], languageOptions: { globals: Object.fromEntries("document window location navigator localStorage performance fetch console setTimeout clearTimeout setInterval clearInterval ResizeObserver AbortController TextDecoderStream crypto URLSearchParams addEventListener removeEventListener matchMedia getComputedStyle scrollTo".split(" ").map((name) => [name, "readonly"])) }, rules: { "no-shadow": "error", "no-undef": "error", eqeqeq: "error" } },
	{ files: ["scripts/*.mjs"], extends: [js.configs.recommended], languageOptions: { globals: { process: "readonly", console: "readonly", URL: "readonly", performance: "readonly", globalThis: "readonly", setTimeout: "readonly", clearTimeout: "readonly" } } },
);
